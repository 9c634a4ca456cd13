from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from onepolicy.errors import OnePolicyError, RunError
from onepolicy.judgement.load import load_limits
from onepolicy.monitor import recorder as recorder_module
from onepolicy.monitor.folder import Folder
from onepolicy.monitor.monitor import Monitor
from onepolicy.records.join import ReadingJoin, digests_of
from onepolicy.records.run import Run
from onepolicy.records.step import Alarm, StepRecord
from onepolicy.records.tokens import TokenState
from onepolicy.records.verdict import Status
from onepolicy.workflow.judge import JudgeRequest, judge

Make = Callable[..., dict[str, Any]]


class At:
    def __init__(self, *steps: int) -> None:
        self.steps = steps

    def add(self, record: StepRecord) -> tuple[Alarm, ...]:
        there = record.step in self.steps
        return (Alarm(step=record.step, kind="limit", message=f"step {record.step}: planted"),) if there else ()


def _monitored(path: Path, batches: list[list[dict[str, Any]]], *alarms: int) -> Run:
    with Monitor(path, watch=At(*alarms)) as monitor:
        for step in batches:
            for batch in step:
                monitor.update(**batch)
            monitor.step()
        assert not monitor._recorder.standing.failures
    return Run.open(path)


def _kept(run: Run, kind: str) -> list[Any]:
    return [rollout for rollout in run.rollouts() if rollout.tags["kept"] == kind]


def test_the_worst_rollouts_of_an_alarm_are_kept_with_all_their_tokens(tmp_path: Path, batch_of: Make) -> None:
    quiet, loud, later = batch_of(0), batch_of(1, off=1.0, rows=3), batch_of(2)
    run = _monitored(tmp_path / "run", [[quiet], [batch_of(7), loud], [later]], 2)
    kept = _kept(run, "alarm")
    assert len(kept) == 8
    assert {rollout.tags["step"] for rollout in kept} == {"2"}
    assert all(rollout.rollout_id.startswith("step-000002-") for rollout in kept)
    for row in range(3):
        wanted = [*loud["prompt_ids"][row].tolist(), *loud["token_ids"][row].tolist()]
        rollout = next(r for r in kept if r.token_ids.tolist() == wanted)
        assert rollout.sampled.tolist() == [False] * 4 + [True] * 16
        assert rollout.group == f"prompt {row // 2}"


def test_both_readings_hold_what_was_handed_over(tmp_path: Path, batch_of: Make) -> None:
    batch = batch_of(1, off=1.0, rows=3)
    batch["trainer_logprobs"][1, 5] = float("nan")
    batch["sampled"][0, 3] = False
    batch["sampled"][0, 14:] = False
    run = _monitored(tmp_path / "run", [[batch]], 1)
    by_ids = {tuple(r.token_ids[:12].tolist()): r for r in _kept(run, "alarm")}
    prompts, ids = batch["prompt_ids"].tolist(), batch["token_ids"].tolist()
    for block in run.rollout_blocks():
        p = ReadingJoin(run, "rollout").take(block, digests_of(block))
        q = ReadingJoin(run, "trainer").take(block, digests_of(block))
        for row in range(2):
            rollout = by_ids[tuple([*prompts[row], *ids[row]][:12])]
            if rollout.rollout_id not in block.rollout_ids:
                continue
            place = block.rollout_ids.index(rollout.rollout_id)
            part = slice(block.offsets[place] + 4, block.offsets[place + 1])
            length = len(rollout.token_ids) - 4
            sampled = batch["sampled"][row, :length].numpy()
            nan = np.isnan(batch["trainer_logprobs"][row, :length].numpy())
            assert np.array_equal(p.logprobs[part][sampled], batch["rollout_logprobs"][row, :length].numpy()[sampled])
            assert (p.states[part] == np.where(sampled, TokenState.VALUE, TokenState.MASKED)).all()
            wanted = np.where(nan, TokenState.INVALID, TokenState.VALUE)
            assert (q.states[part] == np.where(sampled, wanted, TokenState.MASKED)).all()
            assert np.isnan(q.logprobs[part][q.states[part] != TokenState.VALUE]).all()
            assert length == (14 if row == 0 else 16)


def test_some_rollouts_of_every_fiftieth_step_are_kept_whatever_they_show(tmp_path: Path, batch_of: Make) -> None:
    run = _monitored(tmp_path / "run", [[batch_of(step), batch_of(step + 1000)] for step in range(101)])
    kept = _kept(run, "sample")
    assert {rollout.tags["step"] for rollout in kept} == {"1", "51", "101"}
    assert len(kept) == 24
    assert run.manifest.planned_rollouts == 24


def test_small_micro_batches_fill_the_sample_up(tmp_path: Path, batch_of: Make) -> None:
    parts = []
    for step in range(3):
        batch = batch_of(step)
        parts.append({name: value[:3] if name != "trainer_version" else value for name, value in batch.items()})
        parts[-1] = {
            name: value[:, : 10 + step] if isinstance(value, torch.Tensor) and value.shape[1:] == (16,) else value
            for name, value in parts[-1].items()
        }
    run = _monitored(tmp_path / "run", [parts], 1)
    assert len(_kept(run, "sample")) == 8
    assert len(_kept(run, "alarm")) == 8
    assert {len(r.token_ids) for r in run.rollouts()} == {14, 15, 16}


def test_a_run_of_the_monitor_can_be_judged(tmp_path: Path, batch_of: Make) -> None:
    run = _monitored(tmp_path / "run", [[batch_of(step)] for step in range(120)])
    judgement = judge(run.path, JudgeRequest(limits=load_limits("bf16")))
    checks = {verdict.check: verdict for verdict in judgement.verdicts}
    assert checks["mean_kl"].status is Status.PASS
    assert "recording" not in checks
    assert all(
        checks[name].status is not Status.UNKNOWN for name in ("one_weight_version", "same_weights") if name in checks
    )
    assert judgement.counts


def test_stale_rollouts_are_told_apart_from_those_of_the_trainers_weights(tmp_path: Path, batch_of: Make) -> None:
    batch = batch_of(0)
    batch["rollout_versions"], batch["trainer_version"] = torch.tensor([5, 5, 5, 5, 4, 4, 3, -1]), 5
    run = _monitored(tmp_path / "run", [[batch]])
    checks = {verdict.check: verdict for verdict in judge(run.path).verdicts}
    assert checks["one_weight_version"].status is Status.UNKNOWN
    versions = [span.weight_version for span in run.spans()]
    assert sorted(versions) == ["", *["1 behind the trainer's"] * 2, "2 behind the trainer's", *["the trainer's"] * 4]


def test_rollouts_of_newer_weights_say_so(tmp_path: Path, batch_of: Make) -> None:
    batch = batch_of(0) | {"rollout_versions": [5] * 4 + [7] * 4, "trainer_version": 5}
    run = _monitored(tmp_path / "run", [[batch]])
    versions = [span.weight_version for span in run.spans()]
    assert sorted(versions) == ["2 ahead of the trainer's"] * 4 + ["the trainer's"] * 4


WRITES = ("spans", "rollouts", "readings/rollout", "readings/trainer", "manifest")


class Killed(BaseException):
    pass


def _dies_at(monkeypatch: pytest.MonkeyPatch, place: str, error: BaseException) -> None:
    """Every write into a folder, or of the manifest, ends the process."""
    table, manifest = Run._write_table, Run._write_manifest

    def write_table(run: Run, path: Path, content: Any) -> None:
        if str(path.parent).endswith(place):
            raise error
        table(run, path, content)

    def write_manifest(run: Run) -> None:
        if place == "manifest":
            raise error
        manifest(run)

    monkeypatch.setattr(Run, "_write_table", write_table)
    monkeypatch.setattr(Run, "_write_manifest", write_manifest)


@pytest.mark.parametrize("place", WRITES)
def test_a_process_that_is_killed_while_it_keeps_rollouts_leaves_what_can_be_judged_and_taken_up(
    tmp_path: Path, batch_of: Make, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monitor = Monitor(tmp_path / "run", watch=At(3))
    with monkeypatch.context() as patched, pytest.raises(Killed):  # noqa: PT012 - one step late
        for step in range(5):
            monitor.update(**batch_of(step))
            monitor.step()
            if step == 1:
                _dies_at(patched, place, Killed())
                patched.setattr(Folder, "_drop_halves", lambda folder: None)  # a dead process mends nothing
    _free(monitor)
    judgement = judge(tmp_path / "run", JudgeRequest(limits=load_limits("bf16")))
    assert judgement.status is Status.UNKNOWN
    said = [v.message for v in judgement.verdicts if v.check == "recording"]
    assert bool(said) == (place not in ("spans", "rollouts"))
    assert all("the next one on this folder drops the half" in message for message in said)
    with Monitor(tmp_path / "run", watch=At()) as after:
        after.update(**batch_of(0))
        after.step(3)
    run = Run.open(tmp_path / "run")
    whole = run.reading_rollout_ids("rollout") == run.reading_rollout_ids("trainer") == set(run.rollout_ids())
    assert whole
    assert run.manifest.planned_rollouts == len(run.rollout_ids()) >= 8
    assert ("were not whole" in caplog.text) == (place not in ("spans", "manifest"))
    checks = [v.check for v in judge(run.path).verdicts]
    assert not {"recording", "scoring"} & set(checks)


def test_numbers_of_rollouts_that_a_killed_process_never_wrote_are_dropped(tmp_path: Path, batch_of: Make) -> None:
    _monitored(tmp_path / "run", [[batch_of(0)], [batch_of(1)]], 2)
    one = sorted((tmp_path / "run" / "rollouts").glob("*.parquet"))[0]
    one.unlink()
    with pytest.raises(OnePolicyError, match="the run does not have"):
        judge(tmp_path / "run")
    with Monitor(tmp_path / "run", watch=At()):
        pass
    assert judge(tmp_path / "run").status is Status.UNKNOWN
    assert len(Run.open(tmp_path / "run").rollout_ids()) == 8


@pytest.mark.parametrize("place", WRITES)
def test_a_full_disk_leaves_no_half_of_a_rollout(
    tmp_path: Path, batch_of: Make, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    with Monitor(tmp_path / "run", watch=At(3)) as monitor:
        for step in range(5):
            monitor.update(**batch_of(step))
            monitor.step()
            if step == 1:
                _dies_at(monkeypatch, place, RunError("the disk is full"))
    monkeypatch.undo()
    assert monitor.status is Status.FAIL
    run = Run.open(tmp_path / "run")
    assert run.manifest.planned_rollouts == len(run.rollout_ids()) == len(run.reading_rollout_ids("trainer")) == 8
    assert not {"recording", "scoring"} & {v.check for v in judge(run.path).verdicts}


def _free(monitor: Monitor) -> None:
    folder = monitor._recorder._folder
    assert folder is not None
    folder.close()  # as the system does when a process dies


def test_without_ids_nothing_is_kept_and_it_says_so_once(
    tmp_path: Path, batch_of: Make, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="onepolicy.monitor"):
        run = _monitored(tmp_path / "run", [[batch_of(step, ids=False)] for step in range(60)], 2, 59)
    assert not list(run.rollouts())
    assert sum("token_ids" in record.message for record in caplog.records) == 1


def test_evidence_ends_at_a_fixed_total(tmp_path: Path, batch_of: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_module, "MOST_ALARMS", 2)
    run = _monitored(tmp_path / "run", [[batch_of(step)] for step in range(6)], 2, 3, 4, 5)
    assert {rollout.tags["step"] for rollout in _kept(run, "alarm")} == {"2", "3"}
    with Monitor(tmp_path / "run", watch=At(8)) as monitor:  # what is there counts when the folder is taken up again
        for step in range(3):
            monitor.update(**batch_of(step))
            monitor.step()
    assert {rollout.tags["step"] for rollout in _kept(run, "alarm")} == {"2", "3"}


def test_tags_and_the_trainers_words_go_with_the_rollouts(tmp_path: Path, batch_of: Make) -> None:
    batch = batch_of(0) | {"tags": [f"maths {row}" for row in range(8)]}
    with Monitor(tmp_path / "run", about={"rollout_engine": "vllm 1"}) as monitor:
        monitor.update(**batch)
        monitor.step(about={"lr": "1e-5"})
    rollout = next(r for r in Run.open(tmp_path / "run").rollouts() if r.tags["tag"] == "maths 3")
    assert rollout.tags == {"step": "1", "kept": "sample", "tag": "maths 3", "rollout_engine": "vllm 1", "lr": "1e-5"}
    assert rollout.token_ids.tolist() == [*batch["prompt_ids"][3].tolist(), *batch["token_ids"][3].tolist()]


def test_padding_of_the_prompt_is_left_out_where_a_mask_says_so(tmp_path: Path, batch_of: Make) -> None:
    batch = batch_of(0)
    batch["prompt_mask"] = torch.ones(8, 4)
    batch["prompt_mask"][:, :2] = 0
    run = _monitored(tmp_path / "run", [[batch]])
    assert {len(r.token_ids) for r in run.rollouts()} == {18}
