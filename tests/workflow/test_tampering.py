"""Whoever changes a reading without changing its digests must not get a pass out of it."""

import json
import math
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from onepolicy.engines.spec import parse_spec
from onepolicy.errors import ForeignReadingError, RunError, UsageError
from onepolicy.records.protocol import SamplingProtocol
from onepolicy.records.run import Run
from onepolicy.records.tokens import TokenState
from onepolicy.records.verdict import Status
from onepolicy.workflow.check import CheckRequest
from onepolicy.workflow.check import check as run_check
from onepolicy.workflow.judge import JudgeRequest, judge
from onepolicy.workflow.record import RecordRequest, record
from onepolicy.workflow.score import ScoreRequest, score

SIDES = ("rollout", "trainer")


def values_of(row) -> list[int]:
    return [i for i, state in enumerate(row["states"]) if state == TokenState.VALUE]


def longest(rows) -> list[str]:
    """Two rollouts with equally many values, the most there are."""
    return sorted(rows, key=lambda name: (-len(values_of(rows[name])), name))[:2]


def swap_two_rollouts(rows) -> str:
    first, second = longest(rows)
    here, there = values_of(rows[first]), values_of(rows[second])
    assert len(here) == len(there) > 10
    for i, j in zip(here, there, strict=True):
        a, b = rows[first]["logprobs"], rows[second]["logprobs"]
        a[i], b[j] = b[j], a[i]
    return first


def shift_by_one_position(rows) -> str:
    name = longest(rows)[0]
    row, where = rows[name], values_of(rows[name])
    moved = [row["logprobs"][i] for i in where]
    for i, value in zip(where, moved[-1:] + moved[:-1], strict=True):
        row["logprobs"][i] = value
    return name


def replace_one_value_by_zero(rows) -> str:
    name = longest(rows)[0]
    row = rows[name]
    row["logprobs"][min(values_of(row), key=lambda i: row["logprobs"][i])] = 0.0
    return name


def blank_a_tenth_and_leave_the_state(rows) -> str:
    name = longest(rows)[0]
    for i in values_of(rows[name])[::10]:
        rows[name]["logprobs"][i] = math.nan
    return name


def blank_a_tenth_as_absent(rows) -> str:
    name = longest(rows)[0]
    for i in values_of(rows[name])[::10]:
        rows[name]["logprobs"][i] = math.nan
        rows[name]["states"][i] = TokenState.ABSENT
    return name


FAULTS = (
    swap_two_rollouts,
    shift_by_one_position,
    replace_one_value_by_zero,
    blank_a_tenth_and_leave_the_state,
)


def named_in(judgement) -> set[str]:
    """The rollouts that the verdicts which do not pass give as evidence."""
    return {
        evidence.rollout_id
        for verdict in judgement.verdicts
        if verdict.required and verdict.status is not Status.PASS
        for evidence in verdict.evidence
    }


@pytest.mark.parametrize("which", ["noisy", "exact"])
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_changed_reading_fails_and_the_evidence_names_the_rollout(which, side, fault, run_copy, rewrite):
    path, culprits = run_copy(which), []
    rewrite(path / "readings" / side, lambda rows: culprits.append(fault(rows)))
    judgement = judge(path)
    assert judgement.status is Status.FAIL
    assert culprits[0] in named_in(judgement)


@pytest.mark.parametrize("which", ["noisy", "exact"])
@pytest.mark.parametrize("side", SIDES)
def test_a_tenth_of_all_values_blanked_is_unknown_and_names_rollouts_of_it(which, side, run_copy, rewrite):
    path = run_copy(which)

    def blank(rows):
        places = [(name, i) for name in rows for i in values_of(rows[name])]
        for name, i in places[::10]:
            rows[name]["logprobs"][i] = math.nan
            rows[name]["states"][i] = TokenState.ABSENT

    rewrite(path / "readings" / side, blank)
    judgement = judge(path)
    assert judgement.status is Status.UNKNOWN
    assert "coverage" in {v.check for v in judgement.verdicts if v.status is Status.UNKNOWN}
    assert named_in(judgement) <= set(Run.open(path).rollout_ids())
    assert named_in(judgement)


@pytest.mark.parametrize("value", [math.nan, -math.inf, math.inf, -9999.0, -3.4e38, 1e-3])
@pytest.mark.parametrize("side", SIDES)
def test_what_is_no_logprob_fails_and_its_place_is_named(value, side, run_copy, rewrite):
    path, place = run_copy(), []

    def plant(rows):
        name = longest(rows)[1]
        place.append((name, values_of(rows[name])[3]))
        rows[name]["logprobs"][place[0][1]] = value

    rewrite(path / "readings" / side, plant)
    judgement = judge(path)
    verdict = next(v for v in judgement.verdicts if v.check == "valid_logprobs")
    assert judgement.status is verdict.status is Status.FAIL
    assert (verdict.evidence[0].rollout_id, verdict.evidence[0].position) == place[0]
    assert place[0][0] in verdict.message


@pytest.mark.parametrize("value", [-800.0, -999.0])
def test_an_absurd_logprob_fails_and_its_infinite_kl_survives_json(value, run_copy, rewrite):
    path = run_copy()

    def plant(rows):
        row = rows[longest(rows)[0]]
        row["logprobs"][values_of(row)[0]] = value

    rewrite(path / "readings" / "rollout", plant)
    judgement = judge(path)
    assert judgement.status is Status.FAIL
    assert Run.open(path).judgement("default") == judgement


def test_a_token_off_by_a_third_of_a_nat_is_within_the_limits_and_is_shown_as_the_worst(run_copy, rewrite):
    path, place = run_copy(), []

    def move(rows):
        name = longest(rows)[0]
        place.append((name, values_of(rows[name])[5]))
        rows[name]["logprobs"][place[0][1]] -= 0.3

    rewrite(path / "readings" / "trainer", move)
    verdict = next(v for v in judge(path).verdicts if v.check == "max_abs_d")
    assert verdict.status is Status.PASS
    assert verdict.value == pytest.approx(0.3, abs=0.05)
    assert (verdict.evidence[0].rollout_id, verdict.evidence[0].position) == place[0]


def test_a_rollout_offset_by_a_hundredth_is_within_the_limits_and_is_shown_as_the_worst(run_copy, rewrite):
    path, culprit = run_copy("exact"), []

    def move(rows):
        culprit.append(longest(rows)[1])
        row = rows[culprit[0]]
        for i in values_of(row):
            row["logprobs"][i] -= 0.01

    rewrite(path / "readings" / "trainer", move)
    verdicts = {v.check: v for v in judge(path).verdicts}
    assert verdicts["worst_rollout"].value == pytest.approx(5e-5, rel=0.05)
    assert verdicts["worst_rollout"].evidence[0].rollout_id == culprit[0]


def test_duplicated_rows_are_refused_with_the_rollout_and_the_file(run_copy):
    path = run_copy()
    part = Run.open(path).reading_parts("trainer")[0]
    table = pq.read_table(part)
    pq.write_table(pa.concat_tables([table, table]), part)
    with pytest.raises(RunError, match=rf"{part.name}: rollout {table['rollout_id'][0]} stands"):
        judge(path)


def test_a_removed_row_is_unknown_whatever_share_of_the_tokens_it_is(run_copy):
    path = run_copy()
    part = Run.open(path).reading_parts("trainer")[0]
    table = pq.read_table(part)
    pq.write_table(table.slice(1), part)
    gone = table["rollout_id"][0].as_py()
    judgement = judge(path, JudgeRequest(limits=JudgeRequest().limits.model_copy(update={"coverage": 0.5})))
    assert judgement.status is Status.UNKNOWN
    assert gone in named_in(judgement)
    assert f"'trainer' has 31 of 32 rollouts; {gone} is the first" in judgement.sentence


def test_a_deleted_part_of_a_reading_is_unknown_and_scoring_again_restores_the_verdict(run_copy, finished_runs):
    path = run_copy()
    Run.open(path).reading_parts("trainer")[2].unlink()
    assert judge(path).status is Status.UNKNOWN
    score(path, ScoreRequest(engine=parse_spec("fake:m?batch_size=4"), resume=True))
    restored, first = judge(path), Run.open(finished_runs["noisy"]).judgement("default")
    assert restored.model_copy(update={"run": ""}) == first.model_copy(update={"run": ""})


def test_a_deleted_part_of_the_rollouts_is_refused(run_copy):
    path = run_copy()
    sorted((path / "rollouts").glob("*.parquet"))[0].unlink()
    with pytest.raises(ForeignReadingError, match="4 rows for rollouts that the run does not have"):
        judge(path)


def test_a_reading_copied_from_a_run_with_other_tokens_is_refused_with_the_rollout(run_copy, another_run):
    path = run_copy()
    shutil.rmtree(path / "readings" / "trainer")
    shutil.copytree(another_run / "readings" / "trainer", path / "readings" / "trainer")
    with pytest.raises(ForeignReadingError, match=r"rollout quick-\d+/0: reading 'trainer' scored other token ids"):
        judge(path)


def test_an_extra_part_from_another_run_is_refused(run_copy, another_run):
    path = run_copy()
    extra = Run.open(another_run).reading_parts("trainer")[0]
    shutil.copy(extra, path / "readings" / "trainer" / "part-extra.parquet")
    with pytest.raises(RunError, match=r"part-extra\.parquet: rollout .* stands here and in"):
        judge(path)


def test_a_digest_that_is_blank_does_not_open_the_door_to_other_ids(run_copy, rewrite):
    path = run_copy()

    def blank(rows):
        for row in rows.values():
            row["digest"] = ""

    rewrite(path / "readings" / "trainer", blank)
    with pytest.raises(ForeignReadingError, match=r"\(digest \)"):
        judge(path)


def test_the_rollout_reading_copied_as_the_trainer_is_refused(run_copy):
    path = run_copy()
    shutil.rmtree(path / "readings" / "trainer")
    shutil.copytree(path / "readings" / "rollout", path / "readings" / "trainer")
    with pytest.raises(RunError, match=r"is of a reading 'rollout'\. The folder was copied or renamed"):
        judge(path)


def test_a_reading_is_never_compared_with_itself(run_copy):
    with pytest.raises(UsageError, match=r"compared with itself, which always passes. Name two of: rollout, trainer"):
        judge(run_copy(), JudgeRequest(trainer="rollout"))


def test_a_reading_whose_engine_was_renamed_is_not_gone_on_with(run_copy):
    path = run_copy()
    file = path / "readings" / "trainer" / "reading.json"
    content = json.loads(file.read_text())
    content["engine"]["model"] = "other"
    file.write_text(json.dumps(content))
    with pytest.raises(RunError, match="started with model = 'other', and now 'm' is asked for"):
        score(path, ScoreRequest(engine=parse_spec("fake:m?batch_size=4")))


# -- one bad rollout among two thousand -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def large_run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("large")
    lines = [{"id": f"p{i:04}", "messages": [{"role": "user", "content": f"Say {i}"}]} for i in range(2000)]
    (folder / "suite.jsonl").write_text("\n".join(map(json.dumps, lines)))
    request = CheckRequest(
        rollout=parse_spec("fake:m?noise=0.01&batch_size=500"),
        trainer=parse_spec("fake:m?batch_size=500"),
        suite=str(folder / "suite.jsonl"),
        protocol=SamplingProtocol(max_new_tokens=24),
        top=0,
    )
    assert run_check(request, path=folder / "run").status is Status.PASS
    return folder / "run"


@pytest.mark.parametrize(
    ("fault", "allowed"),
    [
        (swap_two_rollouts, {Status.FAIL}),
        (shift_by_one_position, {Status.FAIL}),
        (replace_one_value_by_zero, {Status.FAIL}),
        (blank_a_tenth_and_leave_the_state, {Status.FAIL}),
        (blank_a_tenth_as_absent, {Status.UNKNOWN}),
    ],
)
def test_one_bad_rollout_among_two_thousand_is_found_and_named(fault, allowed, large_run, tmp_path, rewrite):
    path, culprits = shutil.copytree(large_run, tmp_path / "run"), []
    rewrite(path / "readings" / "trainer", lambda rows: culprits.append(fault(rows)))
    judgement = judge(path)
    assert judgement.status in allowed
    assert culprits[0] in named_in(judgement)


def test_the_absent_values_of_one_rollout_among_two_thousand_are_named_with_its_share(large_run, tmp_path, rewrite):
    path, culprits = shutil.copytree(large_run, tmp_path / "run"), []
    rewrite(path / "readings" / "trainer", lambda rows: culprits.append(blank_a_tenth_as_absent(rows)))
    verdict = next(v for v in judge(path).verdicts if v.check == "coverage")
    assert f"rollout {culprits[0]} misses most (3 of 24, trainer side)" in verdict.message


def test_one_missing_row_among_two_thousand_is_unknown(large_run, tmp_path):
    path = shutil.copytree(large_run, tmp_path / "run")
    part = Run.open(path).reading_parts("trainer")[0]
    pq.write_table(pq.read_table(part).slice(1), part)
    assert judge(path).status is Status.UNKNOWN


# -- ids ------------------------------------------------------------------------------------------------------------


def test_ids_outside_the_vocabulary_are_an_error_that_names_rollout_position_and_id(tmp_path, rewrite):
    path = tmp_path / "run"
    record(path, RecordRequest(engine=parse_spec("fake:m"), protocol=SamplingProtocol(max_new_tokens=4)))
    rewrite(path / "rollouts", lambda rows: rows["quick-003/0"]["token_ids"].__setitem__(2, 32_000))
    with pytest.raises(Exception, match=r"quick-003/0: position 2 has the id 32000.*vocabulary of 259") as error:
        score(path, ScoreRequest(engine=parse_spec("fake:m")))
    assert type(error.value).__name__ == "EngineError"
