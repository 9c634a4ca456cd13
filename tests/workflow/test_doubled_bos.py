"""A run in which one side put BOS twice: a token check fails and says so, and numbers are unknown, not numbers."""

import numpy as np
import pyarrow.parquet as pq
import pytest

import onepolicy
from onepolicy.errors import ForeignReadingError
from onepolicy.records.tokens import digest_of_ids
from onepolicy.records.verdict import Status
from onepolicy.workflow.judge import judge

SHORT = onepolicy.SamplingProtocol(max_new_tokens=24)


def checked(tmp_path, options="", **more):
    judgement = onepolicy.check(
        rollout=f"fake:m{options}", trainer="fake:m", run=tmp_path / "run", protocol=SHORT, **more
    )
    return judgement, {verdict.check: verdict for verdict in judgement.verdicts}


def test_bos_twice_in_front_of_every_prompt_fails_with_that_cause_and_no_number_decides(tmp_path):
    judgement, verdicts = checked(tmp_path, "?chat_bos=2")
    assert judgement.status is Status.FAIL
    found = verdicts["special_tokens"]
    assert (found.status, found.required) == (Status.FAIL, True)
    assert "32 of 32 rollouts begin with <|bos|> more than once (BOS doubled)" in found.message
    assert found.evidence[0].position == 1
    numeric = [verdicts[name] for name in ("mean_kl", "worst_rollout", "max_abs_d", "coverage")]
    assert {verdict.status for verdict in numeric} == {Status.UNKNOWN}
    assert all(verdict.value is None for verdict in numeric)
    assert "special_tokens failed" in verdicts["mean_kl"].message


def test_bos_once_in_front_and_none_at_all_are_both_silent(tmp_path):
    for number, options in enumerate(("", "?chat_bos=1")):
        _, verdicts = checked(tmp_path / str(number), options)
        assert not verdicts["special_tokens"].required or verdicts["special_tokens"].status is Status.PASS
        assert verdicts["mean_kl"].status is Status.PASS


def test_a_run_without_text_is_looked_at_too(tmp_path):
    _, verdicts = checked(tmp_path, "?chat_bos=2", keep_text=False)
    assert verdicts["special_tokens"].status is Status.FAIL
    assert verdicts["round_trip"].status is Status.UNKNOWN


def test_a_fixed_suite_has_the_bos_that_the_tokenizer_adds_and_passes(tmp_path):
    judgement, verdicts = checked(tmp_path, suite="fixed-quick")
    assert verdicts["special_tokens"].status is Status.PASS
    assert judgement.status is Status.PASS


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda ids: [ids[0], *ids], "with the first one twice, as an engine does that adds BOS again"),
        (lambda ids: ids[1:], "without the first one, as an engine does that leaves out BOS"),
        (lambda ids: [*ids, ids[-1]], "with the last one twice"),
        (lambda ids: ids[:-1], "without the last one"),
        (lambda ids: ids[::-1], "was copied from another run"),
    ],
)
def test_a_reading_that_scored_other_ids_is_refused_and_says_which(run_copy, rewrite, edit, words):
    path = run_copy()
    parts = [pq.read_table(part).to_pylist() for part in (path / "rollouts").glob("part-*.parquet")]
    ids = {row["rollout_id"]: row["token_ids"] for part in parts for row in part}

    def other_ids(rows):
        for name, row in rows.items():
            row["digest"] = digest_of_ids(np.array(edit(ids[name]), dtype=np.int32))

    rewrite(path / "readings" / "trainer", other_ids)
    with pytest.raises(ForeignReadingError, match=words):
        judge(path)
