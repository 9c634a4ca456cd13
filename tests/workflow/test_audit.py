"""A run of the fake engine, as it is and with faults written into its files."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from onepolicy.engines.spec import EngineSpec
from onepolicy.errors import RunError, UsageError
from onepolicy.records.protocol import SamplingProtocol
from onepolicy.records.run import Run
from onepolicy.records.tokens import digest_of_ids
from onepolicy.records.verdict import Status
from onepolicy.workflow.audit import AuditRequest, audit
from onepolicy.workflow.record import RecordRequest, record
from onepolicy.workflow.score import ScoreRequest, score

ENGINE = EngineSpec(engine="fake", target="m", options={"batch_size": "16"})
PROTOCOL = SamplingProtocol(max_new_tokens=32, samples_per_prompt=2)
END = 258


def recorded(path: Path, protocol: SamplingProtocol = PROTOCOL, **request) -> Path:
    record(path, RecordRequest(engine=ENGINE, protocol=protocol, top=0, **request))
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    return recorded(tmp_path_factory.mktemp("audit") / "run")


@pytest.fixture
def copy(whole, tmp_path) -> Path:
    return shutil.copytree(whole, tmp_path / "run")


def found(path: Path, **request):
    return {v.check: v for v in audit(path, AuditRequest(**request)).verdicts}


def test_a_run_without_a_fault_passes_and_is_counted(whole):
    answer = audit(whole)
    assert (answer.status, answer.exit_status) == (Status.PASS, 0)
    assert answer.sentence.startswith("Pass: nothing odd")
    run = Run.open(whole)
    assert answer.rollouts == answer.calls == len(run.rollout_ids())
    assert answer.tokens == sum(int(rollout.sampled.sum()) for rollout in run.rollouts())
    assert {v.check for v in answer.verdicts if v.status is not Status.PASS} == {"stop_strings"}
    assert answer.sentence.endswith("Not checked: stop_strings."), "none is named"


def test_nothing_in_the_run_changes(copy):
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    audit(copy, AuditRequest(stop=("e",)))
    assert {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()} == before


def test_a_stop_string_is_looked_for_in_the_text_of_the_ids(whole, tmp_path):
    run = Run.open(whole)
    texts = [rollout.text for rollout in run.rollouts()]
    went_on = sum("th" in text and not text.endswith("th") for text in texts)
    verdict = found(whole, stop=("th",))["stop_strings"]
    assert went_on > 0
    assert (verdict.status, verdict.value) == (Status.FAIL, went_on)
    silent = recorded(tmp_path / "silent", keep_text=False)
    assert found(silent, stop=("th",))["stop_strings"].value == went_on, "ids and tokenizer are there without a text"


def test_a_limit_that_a_person_gives_is_the_one_that_counts(whole):
    assert found(whole, max_new_tokens=31)["length_limit"].status is Status.FAIL
    assert found(whole, max_new_tokens=64)["length_limit"].status is Status.FAIL, "cut below it"
    assert found(whole, samples_per_prompt=4)["samples_per_prompt"].status is Status.FAIL
    assert found(whole, max_new_tokens=31)["one_protocol"].status is Status.PASS, "the calls are the run's all the same"


def test_b72_the_reasons_of_a_trainer_that_knows_another_end_are_found(copy, rewrite):
    def as_cut(rows):
        for row in rows.values():
            row["finish_reason"], row["stop_reason"] = "length", ""

    rewrite(copy / "spans", as_cut)
    verdict = found(copy)["finish_reason"]
    assert verdict.status is Status.FAIL
    ended = [r for r in Run.open(copy).rollouts() if r.token_ids[-1] == END and r.sampled.sum() < 32]
    assert verdict.value == len(ended)


def without_last(run: Path, rollout_ids, rewrite) -> None:
    """Cut the last token off some rollouts everywhere."""

    def cut(*columns):
        def edit(rows):
            for name in rollout_ids & rows.keys():
                for column in columns:
                    rows[name][column] = rows[name][column][:-1]
                    if column == "token_ids":
                        digests[name] = digest_of_ids(np.array(rows[name][column]))

        return edit

    digests: dict[str, str] = {}
    rewrite(run / "rollouts", cut("token_ids", "sampled", "loss_mask"))
    rewrite(run / "readings/rollout", cut("logprobs", "states", "top1", "stat_entropy", "stat_varentropy"))

    def digest(rows):
        for name, value in digests.items():
            rows[name]["digest"] = value

    rewrite(run / "readings/rollout", digest)

    def shorter(rows):
        for name in rollout_ids:
            rows[name]["end"] -= 1

    rewrite(run / "spans", shorter)


def test_end_tokens_that_were_dropped_from_the_ids_are_found(copy, rewrite):
    ended = {r.rollout_id for r in Run.open(copy).rollouts() if r.token_ids[-1] == END and r.sampled.sum() > 1}
    without_last(copy, ended, rewrite)
    verdict = found(copy)["finish_reason"]
    assert (verdict.status, verdict.value) == (Status.FAIL, len(ended))


def test_two_samples_of_one_seed_are_found_twice(copy, tmp_path):
    """The second sample of a prompt is the first one again, as from two ranks with one seed."""
    run = Run.open(copy)
    rollouts = {r.rollout_id: r for r in run.rollouts()}
    assert found(copy)["duplicate_samples"].status is Status.PASS
    twins = [r for name, r in rollouts.items() if name.endswith("/0")]
    again = recorded(tmp_path / "again", PROTOCOL.model_copy(update={"samples_per_prompt": 1}))
    prompts = {r.prompt_id: r for r in Run.open(again).rollouts()}
    assert all(prompts[r.prompt_id].token_ids.tolist() == r.token_ids.tolist() for r in twins), (
        "one seed, one completion"
    )


def test_a_rank_that_repeats_another_ones_samples_is_found(copy, rewrite):
    def take(rows, columns):
        for name, row in rows.items():
            if name.endswith("/1"):
                row.update({column: rows[f"{name[:-2]}/0"][column] for column in columns})

    rewrite(copy / "rollouts", lambda rows: take(rows, ("token_ids", "sampled", "loss_mask", "text")))
    columns = ("digest", "logprobs", "states", "top1", "stat_entropy", "stat_varentropy")
    rewrite(copy / "readings/rollout", lambda rows: take(rows, columns))
    rewrite(copy / "spans", lambda rows: take(rows, ("start", "end", "finish_reason", "stop_reason")))
    verdicts = found(copy)
    assert {name for name, v in verdicts.items() if v.status is Status.FAIL} == {"duplicate_samples"}
    assert verdicts["duplicate_samples"].value == len(Run.open(copy).rollout_ids()) / 2


def test_samples_of_a_protocol_that_the_logprobs_do_not_show_cannot_be_judged_if_they_coincide(tmp_path):
    cold = SamplingProtocol(max_new_tokens=8, samples_per_prompt=6, temperature=0.05)
    assert found(recorded(tmp_path / "raw", cold))["duplicate_samples"].status is Status.UNKNOWN
    processed = EngineSpec(engine="fake", target="m", options={"logprobs": "processed"})
    record(tmp_path / "processed", RecordRequest(engine=processed, protocol=cold, top=0))
    verdict = found(tmp_path / "processed")["duplicate_samples"]
    assert verdict.status is Status.PASS, "they are as likely as they are many"
    assert "to be expected" in verdict.message


def test_a_policy_that_cannot_end_in_time_is_unknown(tmp_path):
    path = recorded(tmp_path / "short", SamplingProtocol(max_new_tokens=1))
    answer = audit(path)
    assert {v.check for v in answer.verdicts if v.required and v.status is Status.UNKNOWN} <= {"ends_at_all"}
    assert {v.check: v for v in answer.verdicts}["cut_share"].status is Status.FAIL


def edited(file: Path, edit) -> None:
    content = json.loads(file.read_text())
    edit(content)
    file.write_text(json.dumps(content))


def without_tokenizer(run: Path) -> Path:
    edited(run / "readings/rollout/reading.json", lambda info: info["engine"].update(tokenizer_hash=""))
    return run


def test_without_a_tokenizer_the_ends_are_those_that_the_engine_named(copy, rewrite):
    without_tokenizer(copy)
    verdicts = found(copy)
    assert (verdicts["tokens_after_end"].status, verdicts["tokens_after_end"].required) == (Status.UNKNOWN, False)

    def as_a_number(rows):
        for row in rows.values():
            row["stop_reason"] = row["stop_reason"].replace("<|im_end|>", str(END))

    rewrite(copy / "spans", as_a_number)
    assert audit(copy).status is Status.PASS
    assert found(copy)["end_trained"].status is Status.PASS
    assert found(copy, stop=("e",))["stop_strings"].value > 0, "in the texts"


def test_the_tokenizer_of_the_other_side_serves_where_the_sampling_side_has_none(copy):
    score(copy, ScoreRequest(engine=ENGINE, report_ids_of=None))
    wanted = found(copy, stop=("th",))
    without_tokenizer(copy)
    assert found(copy, stop=("th",)) == wanted


def test_of_a_monitors_sample_only_what_it_shows_is_judged(copy):
    edited(copy / "manifest.json", lambda manifest: manifest.update(suite="monitor", suite_hash="", planned_rollouts=0))
    answer = audit(copy)
    assert answer.status is Status.PASS
    assert {v.check for v in answer.verdicts if v.status is Status.UNKNOWN and not v.required} == {
        "seeds",
        "stop_strings",
    }


def test_a_run_that_is_not_whole_is_unknown(copy):
    next(iter(sorted((copy / "rollouts").glob("part-*")))).unlink()
    answer = audit(copy)
    assert answer.status is Status.UNKNOWN
    assert "of 64 rollouts are recorded" in answer.sentence


def test_what_cannot_be_audited_is_an_error(tmp_path, whole):
    with pytest.raises(RunError, match=r"manifest\.json"):
        audit(tmp_path / "nothing")
    fixed = recorded(tmp_path / "fixed", suite="fixed-quick", budget=500)
    with pytest.raises(UsageError, match="came with the suite"):
        audit(fixed)
    with pytest.raises(UsageError, match="empty --stop"):
        audit(whole, AuditRequest(stop=("",)))
