"""The steps of a monitor's run or of recorded files, and the answer that follows."""

import json
from dataclasses import replace

import numpy as np
import pytest

from onepolicy.dumps.block import in_blocks
from onepolicy.dumps.contract import Column, RecordedRollout
from onepolicy.errors import DumpError, RunError
from onepolicy.judgement.limits import Limits
from onepolicy.monitor.state import STATE_FILE, MonitorState, write_state
from onepolicy.numerics.pair import pair_up
from onepolicy.numerics.steps.record import record_of
from onepolicy.numerics.steps.summary import StepSummary
from onepolicy.records.rollout import Rollout
from onepolicy.records.step import Alarm
from onepolicy.records.verdict import Status
from onepolicy.workflow import step_records
from onepolicy.workflow.step_records import summaries
from onepolicy.workflow.timeline import of_records, timeline
from steps import Scene, simulated, watched

LIMITS = Limits(mean_kl=4e-3)


def monitored(path, records, *, status="pass", limits=LIMITS, alarms=(), **state):
    """What a monitor leaves behind."""
    path.mkdir(exist_ok=True)
    said = {alarm.step: [a for a in alarms if a.step == alarm.step] for alarm in alarms}
    lines = [r.model_copy(update={"alarms": tuple(said.get(r.step, ()))}).model_dump_json() for r in records]
    (path / "steps.jsonl").write_text("".join(f"{line}\n" for line in lines))
    if status is not None:
        told = {"status": status, "policy": "warn", "limits": limits.model_dump_json(), "steps": len(records), **state}
        write_state(path, MonitorState.model_validate(told))
    return path


def check(found, name):
    return next(v for v in found.verdicts if v.check == name)


@pytest.fixture(scope="module")
def quiet():
    return list(simulated(Scene(steps=70), 1))


@pytest.fixture(scope="module")
def planted():
    return Scene(steps=200, stale_from=120, stale_to=140, jump_at=160)


def test_a_quiet_run_that_ended_passes(tmp_path, quiet):
    found = timeline(monitored(tmp_path / "run", quiet))
    assert (found.status, found.exit_status, found.source) == (Status.PASS, 0, "monitor")
    assert found.sentence.startswith("Pass: mean k3 of the trainer's own weights 0.0")
    assert (found.alarms, found.events, found.notes) == ((), (), ())
    assert len(found.records) == 70


def test_both_planted_faults_are_told_as_the_watch_told_them_and_named_apart(tmp_path, planted):
    alarms = watched(planted, 1, LIMITS)
    path = monitored(tmp_path / "run", list(simulated(planted, 1)), status="fail", alarms=alarms, why="alarms: stale 1")
    found = timeline(path)
    assert found.exit_status == 1
    assert list(found.alarms) == alarms
    assert [event.kind for event in found.events] == ["growing", "level"]
    assert [event.first for event in found.events] == pytest.approx([120, 160], abs=4)
    assert found.sentence.startswith("Fail: step ")
    assert "do not reach the rollout engine" in found.sentence
    assert check(found, "seen_to_its_end").status is Status.PASS


def test_the_same_steps_say_the_same_under_limits_that_are_named_anew(tmp_path, planted):
    alarms = watched(planted, 1, LIMITS)
    path = monitored(tmp_path / "run", list(simulated(planted, 1)), status="fail", alarms=alarms)
    assert timeline(path, limits=LIMITS).alarms == tuple(alarms)
    wider = timeline(path, limits=Limits(mean_kl=1.0))
    assert [a.kind for a in wider.alarms] == [a.kind for a in alarms if a.kind != "limit"]


@pytest.mark.parametrize("status", ["running", "unknown"])
def test_a_monitor_that_did_not_end_well_is_no_pass(tmp_path, quiet, status):
    found = timeline(monitored(tmp_path / "run", quiet, status=status, why="2 of 70 steps had no token to compare"))
    assert found.exit_status == 3
    assert "the training is under way, or was killed" in found.sentence or "had no token" in found.sentence


def test_a_run_without_the_end_marker_is_no_pass(tmp_path, quiet):
    found = timeline(monitored(tmp_path / "run", quiet, status=None))
    assert found.exit_status == 3
    assert STATE_FILE in found.sentence


def test_a_monitor_that_failed_is_no_pass_even_under_other_limits(tmp_path, quiet):
    path = monitored(tmp_path / "run", quiet, failures={"write a step": "the disk is full"})
    found = timeline(path, limits=Limits(mean_kl=1.0))
    assert found.exit_status == 3
    assert "the disk is full" in found.sentence


def test_a_monitor_that_says_fail_fails_although_its_steps_show_nothing(tmp_path, quiet):
    found = timeline(monitored(tmp_path / "run", quiet, status="fail", why="alarms: invalid 1"))
    assert found.exit_status == 1
    assert "alarms: invalid 1" in found.sentence


def test_a_last_line_that_is_cut_off_is_left_out_and_said(tmp_path, quiet):
    path = monitored(tmp_path / "run", quiet)
    whole = (path / "steps.jsonl").read_bytes()
    (path / "steps.jsonl").write_bytes(whole[:-200])
    found = timeline(path)
    assert len(found.records) == 69
    assert "the last line is cut off" in found.notes[0]
    assert found.exit_status == 3


def test_any_other_line_that_is_no_step_is_an_error_that_names_it(tmp_path, quiet):
    path = monitored(tmp_path / "run", quiet)
    lines = (path / "steps.jsonl").read_text().splitlines()
    lines[4] = '{"step": 5}'
    (path / "steps.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(RunError, match="line 5 is no step"):
        timeline(path)


def test_steps_that_were_written_again_after_a_restart_count_once(tmp_path, quiet):
    found = timeline(monitored(tmp_path / "run", [*quiet[:50], *quiet[40:]]))
    assert [record.step for record in found.records] == list(range(1, 71))
    assert "10 steps were written again" in found.notes[0]


def test_a_monitor_that_began_and_saw_nothing_is_unknown(tmp_path):
    path = monitored(tmp_path / "run", [], status="running")
    (path / "steps.jsonl").unlink()
    found = timeline(path)
    assert found.exit_status == 3
    assert found.records == ()


def test_limits_that_the_folder_does_not_hold_are_said(tmp_path, quiet):
    path = monitored(tmp_path / "run", quiet)
    state = json.loads((path / STATE_FILE).read_text())
    (path / STATE_FILE).write_text(json.dumps({**state, "limits": "limits"}))
    found = timeline(path)
    assert "Name them with --limits" in found.notes[0]
    assert found.mean_kl_limit == 1e-4


def test_too_few_steps_are_unknown(quiet):
    found = of_records("few", quiet[:5], limits=LIMITS)
    assert found.status is Status.UNKNOWN
    assert check(found, "weights_arrive").message.startswith("5 steps have tokens of the trainer's own weights; 9 are")


def test_a_limit_inside_the_interval_is_unknown(quiet):
    value = check(of_records("x", quiet, limits=LIMITS), "mean_kl").value
    found = of_records("x", quiet, limits=Limits(mean_kl=value * 1.01))
    assert check(found, "mean_kl").status is Status.UNKNOWN
    assert found.status is Status.UNKNOWN


def test_a_stretch_in_the_midst_that_is_not_within_the_limit_is_no_pass(quiet):
    k3 = [1.0 if not 64 < i <= 70 else 6.0 for i in range(200)]
    records = [
        r.model_copy(
            update={
                "step": i,
                "by_confidence": tuple(c.model_copy(update={"k3": c.k3 * k3[i]}) for c in r.by_confidence),
                "metrics": {"gate": r.metrics["gate"] * k3[i]},
                "standard_error": r.standard_error * k3[i],
            }
        )
        for i, r in enumerate([*quiet, *quiet, *quiet][:200])
    ]
    wide = Limits(mean_kl=1.0)
    high = [check(of_records("x", part, limits=wide), "mean_kl").high for part in (records[:64], records)]
    assert high[1] > high[0] * 1.2


def test_a_step_without_a_token_to_compare_is_unknown(quiet):
    empty = quiet[30].model_copy(update={"valid": 0, "compared": 0, "by_lag": (), "by_confidence": ()})
    found = of_records("x", [*quiet[:30], empty, *quiet[31:]], limits=LIMITS)
    assert check(found, "coverage").status is Status.UNKNOWN


def test_no_step_at_all_is_unknown():
    assert of_records("x", [], limits=LIMITS).status is Status.UNKNOWN


def recorded(step, number, *, length=12, advantage=0.5, versions=("", ""), rng=None):
    rng = rng or np.random.default_rng(1000 * step + number)
    p = np.concatenate([[np.nan] * 2, -0.5 - rng.exponential(1, length)]).astype(np.float32)
    q = (p + rng.normal(0, 0.05, length + 2)).astype(np.float32)
    sampled = np.arange(length + 2) >= 2
    states = np.where(sampled, 0, 1).astype(np.uint8)
    return RecordedRollout(
        where=f"file, row {number}",
        rollout=Rollout(
            rollout_id=f"s{step}-{number}",
            prompt_id=f"s{step}-p{number // 4}",
            trajectory_id=f"s{step}-{number}",
            token_ids=rng.integers(0, 99, length + 2).astype(np.int32),
            sampled=sampled,
            loss_mask=sampled,
        ),
        rollout_logprobs=Column(logprobs=p, states=states),
        trainer_logprobs=Column(logprobs=q, states=states),
        step=step,
        weight_version=versions[0],
        trainer_version=versions[1],
        advantage=advantage if advantage is None else advantage * (-1) ** number,
    )


def test_rollouts_in_any_order_and_any_blocks_give_the_steps_that_each_gives_alone(monkeypatch):
    monkeypatch.setattr(step_records, "OPEN_STEPS", 3)
    rows = [recorded(step, number) for step in range(1, 9) for number in range(16)]
    mixed = [rows[i] for i in np.random.default_rng(0).permutation(len(rows))]
    found = summaries(block for part in range(0, len(mixed), 17) for block in in_blocks(mixed[part : part + 17]))
    assert [record.step for record in found] == list(range(1, 9))
    for record in found:
        alone = StepSummary(step=record.step)
        [block] = in_blocks([row for row in rows if row.step == record.step])
        pair = pair_up(block.rollouts, block.rollout.digests, block.rollout, block.trainer)
        alone.add_pair(pair, lags=np.full(16, -1), advantages=block.advantages)
        expected = record_of(alone)
        assert record.valid == expected.valid == 192
        assert record.metrics == pytest.approx(expected.metrics)
        assert record.advantage.model_dump() == pytest.approx(expected.advantage.model_dump())
        assert record.worst_rollouts == expected.worst_rollouts


def test_other_weights_are_never_counted_as_the_trainers():
    versions = [("3", "5"), ("5", "5"), ("abc", "5"), ("", ""), ("6", "5")]
    rows = [recorded(1, number, versions=told) for number, told in enumerate(versions)]
    [record] = summaries(in_blocks(rows))
    assert {cell.lag: cell.tokens for cell in record.by_lag} == {2: 12, 0: 12, 8: 12, -1: 12, 1: 12}


def test_rollouts_without_a_step_are_refused_with_what_to_do():
    row = replace(recorded(1, 0), step=None)
    with pytest.raises(DumpError, match=r"1 of 2 rollouts do not say the step .* onepolicy compare"):
        summaries(in_blocks([row, recorded(1, 1)]))


def test_rollouts_of_one_side_are_refused():
    row = replace(recorded(1, 0), trainer_logprobs=None)
    with pytest.raises(DumpError, match="has no trainer logprobs"):
        summaries(in_blocks([row]))


def lines(step, rollouts=32, *, scale=0.02):
    rng = np.random.default_rng(step)
    for number in range(rollouts):
        p = -0.5 - rng.exponential(1, 20)
        yield {
            "prompt_ids": [1, 2, 3 + number // 4],
            "completion_ids": rng.integers(0, 99, 20).tolist(),
            "rollout_logprobs": p.tolist(),
            "trainer_logprobs": (p + rng.normal(0, scale, 20) - scale**2 / 2).tolist(),
            "step": step,
            "advantage": float((-1) ** number),
        }


def test_a_folder_of_step_files_is_a_timeline(tmp_path):
    for step in range(1, 31):
        text = "".join(json.dumps({**row, "rollout_id": f"{step}-{i}"}) + "\n" for i, row in enumerate(lines(step)))
        (tmp_path / f"step_{step}.jsonl").write_text(text)
    found = timeline(tmp_path, limits=LIMITS)
    assert (found.status, found.source, len(found.records)) == (Status.PASS, "files", 30)
    assert {record.valid for record in found.records} == {640}


def test_rows_that_were_refused_are_told(tmp_path):
    rows = [{**row, "rollout_id": f"{i}"} for i, row in enumerate(lines(1))]
    rows[3]["rollout_logprobs"] = [-1.0]
    path = tmp_path / "dump.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = timeline(path, limits=LIMITS)
    assert found.notes[0].startswith("1 of 32 rows were refused and are in no number. First: ")
    assert found.status is Status.UNKNOWN


def dump(path, steps, change=lambda row, number: row):
    """Step files as one JSONL; `change` sees a row and its number within the step."""
    rows = [
        change({**row, "rollout_id": f"{step}-{i}", "weight_version": 1, "trainer_version": 1}, i)
        for step in range(1, steps + 1)
        for i, row in enumerate(lines(step))
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def with_zeros(row, number):
    zeros = [0.0] * 20
    return row | {"rollout_logprobs": zeros, "trainer_logprobs": zeros} if number % 8 == 0 else row


def masked_away(row, number):
    kept = [number % 16 == 0] * 20
    return row | {"loss_mask": kept, "sampled": kept}


FILES = {
    "refused": (lambda row, n: row | {"trainer_logprobs": [-1.0]} if n == 5 else row, "were refused"),
    "zeros": (with_zeros, "nothing but 0.0"),
    "copies": (
        lambda row, n: row | {"trainer_logprobs": row["rollout_logprobs"]} if n % 4 == 0 else row,
        "may be a copy",
    ),
    "masked away": (masked_away, "no token to compare"),
    "stale": (lambda row, n: row | {"trainer_version": 2} if n % 8 else row, "by other weights"),
    "ahead": (lambda row, n: row | {"weight_version": 2}, "by other weights"),
    "named otherwise": (lambda row, n: row | {"weight_version": "sha-a", "trainer_version": "sha-b"}, "other weights"),
}


@pytest.mark.parametrize("name", FILES)
def test_files_that_say_nothing_of_the_two_engines_are_no_pass(tmp_path, name):
    change, words = FILES[name]
    found = timeline(dump(tmp_path / "dump.jsonl", 12, change), limits=LIMITS)
    assert found.status is Status.UNKNOWN, found.sentence
    assert words in found.sentence


def test_files_that_say_enough_pass(tmp_path):
    plain = timeline(dump(tmp_path / "dump.jsonl", 12), limits=LIMITS)
    named_alike = timeline(
        dump(tmp_path / "two.jsonl", 12, lambda row, n: row | {"weight_version": "a", "trainer_version": "a"}),
        limits=LIMITS,
    )
    assert (plain.status, named_alike.status) == (Status.PASS, Status.PASS), plain.sentence


@pytest.mark.parametrize("status", ["fail", "unknown"])
def test_what_a_monitor_found_stays_found_under_other_limits(tmp_path, quiet, status):
    path = monitored(tmp_path / "run", quiet, status=status, why="alarms: limit 1")
    for limits in (None, Limits(mean_kl=4e-3), Limits(mean_kl=1.0)):
        found = timeline(path, limits=limits)
        assert found.status is Status(status)
        assert any("do not take that back" in note for note in found.notes) == (limits is not None)
    path = monitored(tmp_path / "run", quiet)
    assert timeline(path, limits=Limits(mean_kl=1.0)).status is Status.PASS


def test_alarms_that_the_state_knows_and_the_steps_do_not_fail(tmp_path, quiet):
    path = monitored(tmp_path / "run", quiet, status="running", why="alarms: jump 1")
    state = json.loads((path / STATE_FILE).read_text())
    (path / STATE_FILE).write_text(json.dumps({**state, "alarms": {"jump": 1}}))
    assert timeline(path).status is Status.FAIL


@pytest.mark.parametrize("lines_of", [lambda text: text[:3] + text[9:], lambda text: text + text[-1:]])
def test_steps_that_were_removed_or_written_by_another_are_unknown(tmp_path, quiet, lines_of):
    path = monitored(tmp_path / "run", quiet)
    text = (path / "steps.jsonl").read_text().splitlines(keepends=True)
    (path / "steps.jsonl").write_text("".join(lines_of(text)))
    found = timeline(path)
    assert found.status is Status.UNKNOWN
    assert "says that it saw 70" in found.sentence


def test_an_alarm_of_a_step_that_was_done_again_still_counts(tmp_path, quiet):
    bad = quiet[40].model_copy(update={"alarms": (Alarm(step=41, kind="jump", message="step 41: planted"),)})
    path = monitored(tmp_path / "run", [])
    written = [*quiet[:40], bad, *quiet[40:]]
    (path / "steps.jsonl").write_text("".join(f"{record.model_dump_json()}\n" for record in written))
    assert timeline(path).sentence.startswith("Fail: step 41: planted")
