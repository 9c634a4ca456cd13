from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from onepolicy.errors import AlignmentError, RunError, UsageError
from onepolicy.judgement.limits import Limits
from onepolicy.monitor import past as past_module
from onepolicy.monitor.halted import TrainingHalted
from onepolicy.monitor.monitor import Monitor
from onepolicy.monitor.state import read_state
from onepolicy.records.step import Alarm, StepRecord
from onepolicy.records.verdict import Status

Make = Callable[..., dict[str, Any]]


class Scripted:
    """A watch that raises the alarms it is told to, by step."""

    def __init__(self, alarms: dict[int, str]) -> None:
        self.alarms = alarms
        self.seen: list[int] = []

    def add(self, record: StepRecord) -> tuple[Alarm, ...]:
        self.seen.append(record.step)
        kind: Any = self.alarms.get(record.step)
        return (Alarm(step=record.step, kind=kind, message=f"step {record.step}: planted"),) if kind else ()


def _lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "steps.jsonl").read_text().splitlines()]


def test_a_quiet_training_passes_once_it_is_closed(tmp_path: Path, batch_of: Make) -> None:
    monitor = Monitor(tmp_path / "run", limits="bf16", about={"rollout_engine": "vllm 0.32.0"})
    assert read_state(tmp_path / "run").status == "running"
    for step in range(10):
        keep = monitor.update(**batch_of(step))
        assert keep.tolist() == [[1.0]] * 8
        monitor.step()
    assert monitor.status is Status.UNKNOWN
    assert monitor.why == "the training has not ended"
    monitor.close()
    assert monitor.status is Status.PASS
    assert read_state(tmp_path / "run").status == "pass"
    lines = _lines(tmp_path / "run")
    assert [line["step"] for line in lines] == list(range(1, 11))
    assert lines[0]["about"] == {"rollout_engine": "vllm 0.32.0"}


def test_step_gives_the_numbers_of_the_step_before(tmp_path: Path, batch_of: Make) -> None:
    monitor = Monitor(tmp_path / "run", limits="bf16")
    batch = batch_of(0)
    batch["rollout_versions"] = [7] * 4 + [5] * 4
    batch["trainer_version"] = 7
    monitor.update(**batch)
    assert monitor.step(100) == {}
    monitor.update(**batch_of(1, noise=1.0))
    numbers = monitor.step(101)
    d = (batch["trainer_logprobs"].double() - batch["rollout_logprobs"].double()).numpy()
    k3 = np.exp(d) - 1 - d
    assert numbers["onepolicy/step"] == 100
    assert numbers["onepolicy/k3"] == pytest.approx(k3.mean(), rel=1e-6)
    assert numbers["onepolicy/same_version_k3"] == pytest.approx(k3[:4].mean(), rel=1e-6)
    assert numbers["onepolicy/stale_k3"] == pytest.approx(k3[4:].mean(), rel=1e-6)
    assert numbers["onepolicy/mean_abs_d"] == pytest.approx(np.abs(d).mean(), rel=1e-6)
    assert numbers["onepolicy/max_abs_d"] == pytest.approx(np.abs(d).max(), rel=1e-6)
    assert numbers["onepolicy/coverage"] == 1.0
    assert numbers["onepolicy/invalid_tokens"] == 0
    assert numbers["onepolicy/kl_high"] > numbers["onepolicy/k3"]
    assert all(isinstance(value, float) for value in numbers.values())


def test_the_policy_mask_leaves_outlier_rollouts_out_of_the_loss_in_the_same_step(
    tmp_path: Path, batch_of: Make
) -> None:
    monitor = Monitor(tmp_path / "run", policy="mask", limits="bf16")
    batch = batch_of(0, off=2.0, rows=2)
    batch["trainer_logprobs"][5, 3] = float("nan")
    keep = monitor.update(**batch)
    assert keep[:, 0].tolist() == [0, 0, 1, 1, 1, 0, 1, 1]
    monitor.step()
    numbers = monitor.step()
    assert numbers["onepolicy/masked_rollouts"] == numbers["onepolicy/outlier_rollouts"] == 3
    assert numbers["onepolicy/invalid_tokens"] == 1
    assert _lines(tmp_path / "run")[0]["masked_rollouts"] == 3


@pytest.mark.parametrize("policy", ["warn", "halt"])
def test_the_other_policies_mask_nothing_and_count_the_outliers(tmp_path: Path, batch_of: Make, policy: Any) -> None:
    monitor = Monitor(tmp_path / "run", policy=policy, limits="bf16", watch=Scripted({}))
    assert monitor.update(**batch_of(0, off=2.0, rows=2)).tolist() == [[1.0]] * 8
    monitor.step()
    numbers = monitor.step()
    assert numbers["onepolicy/outlier_rollouts"] == 2
    assert numbers["onepolicy/masked_rollouts"] == 0


@pytest.mark.parametrize("kind", ["limit", "jump", "stale", "invalid"])
def test_a_deciding_alarm_halts_one_step_late(tmp_path: Path, batch_of: Make, kind: str) -> None:
    monitor = Monitor(tmp_path / "run", policy="halt", watch=Scripted({2: kind}))
    for step in range(2):
        monitor.update(**batch_of(step))
        monitor.step()
    monitor.update(**batch_of(2))
    with pytest.raises(TrainingHalted) as halted:
        monitor.step()
    message = str(halted.value.code)
    assert "planted" in message
    assert f"onepolicy timeline {tmp_path / 'run'}" in message
    assert "the rollouts step-000002-*" in message
    assert monitor.status is Status.FAIL
    state = read_state(tmp_path / "run")
    assert (state.status, state.steps, state.alarms) == ("fail", 3, {kind: 1})
    monitor.close()


@pytest.mark.parametrize("kind", ["outliers", "monitor"])
def test_an_alarm_that_does_not_decide_halts_nothing_and_does_not_pass(
    tmp_path: Path, batch_of: Make, kind: str
) -> None:
    with Monitor(tmp_path / "run", policy="halt", watch=Scripted({1: kind})) as monitor:
        for step in range(3):
            monitor.update(**batch_of(step))
            monitor.step()
    assert monitor.status is Status.UNKNOWN


def test_an_alarm_of_the_last_step_halts_in_close(tmp_path: Path, batch_of: Make) -> None:
    monitor = Monitor(tmp_path / "run", policy="halt", watch=Scripted({1: "limit"}))
    monitor.update(**batch_of(0))
    monitor.step()
    with pytest.raises(TrainingHalted):
        monitor.close()
    assert read_state(tmp_path / "run").status == "fail"


def test_the_limits_decide_without_a_script(tmp_path: Path, batch_of: Make) -> None:
    monitor = Monitor(tmp_path / "run", policy="halt", limits=Limits(mean_kl=1e-4))
    with pytest.raises(TrainingHalted, match=r"mean k3 .* limit 0\.0001"):  # noqa: PT012 - which step it takes is the watch's
        for step in range(60):
            monitor.update(**batch_of(step, noise=0.3))
            monitor.step()


def test_a_halted_process_says_why_and_ends_with_status_1(tmp_path: Path) -> None:
    code = (
        "from pathlib import Path\nfrom onepolicy.monitor.notices import halt\n"
        "from onepolicy.records.step import Alarm\n"
        "raise halt([Alarm(step=1, kind='limit', message='step 1: planted')], Path('runs/monitor'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "training halted" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_alarm_of_one_kind_is_said_once_in_fifty_steps(
    tmp_path: Path, batch_of: Make, caplog: pytest.LogCaptureFixture
) -> None:
    monitor = Monitor(tmp_path / "run", watch=Scripted(dict.fromkeys(range(1, 121), "jump")))
    with caplog.at_level(logging.WARNING, logger="onepolicy.monitor"):
        for step in range(121):
            monitor.update(**batch_of(step % 3, ids=False))
            monitor.step()
    said = [record.message for record in caplog.records if "planted" in record.message]
    assert len(said) == 3
    assert said[1].startswith("step 51: planted (49 more of the kind 'jump'")
    assert read_state(tmp_path / "run").alarms["jump"] >= 101


def test_nothing_compared_is_no_pass(tmp_path: Path, batch_of: Make) -> None:
    with Monitor(tmp_path / "run") as monitor:
        batch = batch_of(0)
        batch["sampled"] = torch.zeros(8, 16)
        monitor.update(**batch)
        monitor.step()
    assert monitor.status is Status.UNKNOWN
    assert "steps have none" in monitor.why


def test_a_monitor_that_saw_no_step_does_not_pass(tmp_path: Path) -> None:
    with Monitor(tmp_path / "run") as monitor:
        pass
    assert monitor.status is Status.UNKNOWN


def test_a_training_that_ends_with_an_error_does_not_pass(tmp_path: Path, batch_of: Make) -> None:
    with pytest.raises(ZeroDivisionError), Monitor(tmp_path / "run") as monitor:  # noqa: PT012
        monitor.update(**batch_of(0))
        monitor.step()
        raise ZeroDivisionError
    assert monitor.status is Status.UNKNOWN
    assert "ZeroDivisionError" in read_state(tmp_path / "run").why


# -- what the caller gets wrong -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"rollout_logprobs": torch.zeros(8, 15)}, AlignmentError, r"\[8, 15\]"),
        ({"rollout_logprobs": torch.zeros(8, 16, dtype=torch.int64)}, UsageError, "floating"),
        ({"trainer_logprobs": torch.zeros(8)}, UsageError, r"\[B, T\]"),
        ({"sampled": torch.zeros(16, 8)}, AlignmentError, "sampled"),
        ({"sampled": [[1] * 16] * 8}, UsageError, "list"),
        ({"loss_mask": torch.zeros(8, 17)}, AlignmentError, "loss_mask"),
        ({"token_ids": torch.zeros(8, 16)}, UsageError, "whole numbers"),
        ({"token_ids": torch.zeros(8, 17, dtype=torch.int64)}, AlignmentError, "token_ids"),
        ({"prompt_ids": torch.zeros(7, 4, dtype=torch.int64)}, AlignmentError, "prompt_ids"),
        ({"prompt_ids": torch.zeros(8, dtype=torch.int64)}, AlignmentError, "prompt_ids"),
        ({"prompt_mask": torch.zeros(8, 5)}, AlignmentError, "prompt_mask"),
        ({"rollout_versions": [1] * 7}, AlignmentError, "rollout_versions"),
        ({"rollout_versions": ["a"] * 8}, UsageError, "rollout_versions"),
        ({"rollout_versions": torch.zeros(8)}, UsageError, "whole"),
        ({"trainer_version": torch.tensor(3)}, UsageError, "trainer_version"),
        ({"advantages": torch.zeros(8, 16)}, AlignmentError, "advantages"),
        ({"groups": "prompts!"}, AlignmentError, "groups"),
        ({"groups": [1.5] * 8}, UsageError, "groups"),
        ({"groups": torch.zeros(8)}, UsageError, "groups"),
        ({"groups": 7}, UsageError, "cannot be read"),
        ({"tags": 7}, UsageError, "cannot be read"),
        ({"rollout_versions": [1.5] * 8}, UsageError, "rollout_versions"),
        ({"rollout_versions": [2**70] * 8}, UsageError, "rollout_versions"),
        ({"rollout_versions": [[1]] * 8}, UsageError, "rollout_versions"),
        ({"trainer_version": "step-3"}, UsageError, "trainer_version"),
        ({"trainer_version": 2**70}, UsageError, "trainer_version"),
        ({"sampled": torch.nested.nested_tensor([torch.ones(16)] * 8, layout=torch.jagged)}, UsageError, "nested"),
        ({"advantages": torch.zeros(8).to_sparse()}, UsageError, "sparse"),
        ({"tags": ["a"] * 9}, AlignmentError, "tags"),
        ({"sampled": torch.zeros(8, 16, device="meta")}, UsageError, "meta"),
    ],
)
def test_what_does_not_fit_is_an_error_at_the_first_call(
    tmp_path: Path, batch_of: Make, changes: dict[str, Any], error: type[Exception], words: str
) -> None:
    monitor = Monitor(tmp_path / "run")
    with pytest.raises(error, match=words):
        monitor.update(**{**batch_of(0), **changes})


def test_what_does_not_fit_later_is_a_failure_that_training_survives(
    tmp_path: Path, batch_of: Make, caplog: pytest.LogCaptureFixture
) -> None:
    monitor = Monitor(tmp_path / "run", policy="mask")
    monitor.update(**batch_of(0))
    for _ in range(3):
        keep = monitor.update(**{**batch_of(0, off=9.0, rows=8), "sampled": torch.zeros(8, 15)})
        assert keep.tolist() == [[1.0]] * 8
        monitor.step()
    monitor.close()
    assert len(caplog.records) == 1
    assert monitor.status is Status.UNKNOWN
    assert "could not read a micro-batch" in monitor.why
    assert [alarm["kind"] for line in _lines(tmp_path / "run") for alarm in line["alarms"]].count("monitor") == 1


def test_what_is_no_tensor_at_all_is_survived_later(tmp_path: Path, batch_of: Make) -> None:
    monitor = Monitor(tmp_path / "run")
    monitor.update(**batch_of(0))
    assert monitor.update(**batch_of(0) | {"trainer_logprobs": None}).tolist() == [[1.0]]
    monitor.close()
    assert monitor.status is Status.UNKNOWN


ODD = [
    {"trainer_version": "a"},
    {"rollout_versions": [object()] * 8},
    {"rollout_versions": iter([1] * 8)},
    {"groups": [[1]] * 8},
    {"groups": torch.zeros(8, 2)},
    {"tags": torch.ones(8)},
    {"tags": ["\ud800"] * 8},
    {"rollout_logprobs": torch.nested.nested_tensor([torch.zeros(16)] * 8, layout=torch.jagged)},
    {"trainer_logprobs": torch.nested.nested_tensor([torch.zeros(16)] * 8, layout=torch.jagged)},
    {"trainer_logprobs": torch.zeros(8, 16).to_sparse()},
    {"token_ids": [[1] * 16] * 8},
    {"prompt_mask": torch.ones(8, 4).to_sparse()},
]


@pytest.mark.parametrize("changes", ODD, ids=range(len(ODD)))
def test_what_is_odd_later_never_ends_the_training_and_never_passes(
    tmp_path: Path, batch_of: Make, changes: dict[str, Any]
) -> None:
    with Monitor(tmp_path / "run", limits="bf16") as monitor:
        for step in range(12):
            keep = monitor.update(**batch_of(step) | (changes if step == 3 else {}))
            assert keep.shape[1] == 1
            monitor.step()
    assert monitor.status is Status.UNKNOWN or changes.get("tags") == ["\ud800"] * 8
    assert len(_lines(tmp_path / "run")) == 12


def test_names_of_prompts_may_be_any_text(tmp_path: Path, batch_of: Make) -> None:
    monitor = Monitor(tmp_path / "run")
    monitor.update(**batch_of(0) | {"groups": ["\ud800"] * 8})
    monitor.close()
    assert not monitor._recorder.standing.failures or "keep rollouts" in monitor._recorder.standing.failures


NUMBERS = ["5", 2.5, [1], float("nan"), True, 2**70, torch.tensor(7)]


@pytest.mark.parametrize("number", NUMBERS, ids=range(len(NUMBERS)))
def test_a_number_that_is_none_is_a_failure_and_the_step_is_counted(
    tmp_path: Path, batch_of: Make, number: Any
) -> None:
    with Monitor(tmp_path / "run") as monitor:
        for given in (None, number, None):
            monitor.update(**batch_of(0))
            monitor.step(given)
    assert monitor.status is Status.UNKNOWN
    assert "take the number of a step" in monitor.why
    assert [line["step"] for line in _lines(tmp_path / "run")] == [1, 2, 3]


@pytest.mark.parametrize("about", [[1], "x", {"x": "\ud800"}, 7])
def test_what_is_said_of_a_step_and_is_no_text_is_a_failure(tmp_path: Path, batch_of: Make, about: Any) -> None:
    with Monitor(tmp_path / "run") as monitor:
        for said in ({"lr": 1}, about, None):
            monitor.update(**batch_of(0))
            monitor.step(about=said)
    assert "take what is said of a step" in monitor.why
    assert [line["about"] for line in _lines(tmp_path / "run")] == [{"lr": "1"}, {}, {}]
    with pytest.raises(UsageError, match="about"):
        Monitor(tmp_path / "other", about=about)


@pytest.mark.parametrize("path", [7, None, "a\0b", "\ud800"])
def test_what_is_no_path_is_an_error(path: Any) -> None:
    with pytest.raises(UsageError, match="no path"):
        Monitor(path)


def test_an_unknown_policy_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="warn, mask, halt"):
        Monitor(tmp_path / "run", policy="stop")  # type: ignore[arg-type]


def test_what_was_handed_over_before_close_is_a_step(tmp_path: Path, batch_of: Make) -> None:
    monitor = Monitor(tmp_path / "run", policy="halt", limits="bf16", watch=Scripted({11: "limit"}))
    for step in range(10):
        monitor.update(**batch_of(step))
        monitor.step()
    monitor.update(**batch_of(10))
    with pytest.raises(TrainingHalted, match="step 11: planted"):
        monitor.close()
    assert [line["step"] for line in _lines(tmp_path / "run")] == list(range(1, 12))
    assert read_state(tmp_path / "run").status == "fail"


def test_close_after_step_adds_no_step(tmp_path: Path, batch_of: Make) -> None:
    assert _run(tmp_path / "run", batch_of, 10, limits="bf16").status is Status.PASS
    assert len(_lines(tmp_path / "run")) == 10


EVIL = "\x1b[2J\u202e\r"


def test_what_a_trainer_says_cannot_move_a_terminals_cursor(
    tmp_path: Path, batch_of: Make, caplog: pytest.LogCaptureFixture
) -> None:
    class Loud(Scripted):
        def add(self, record: StepRecord) -> tuple[Alarm, ...]:
            alarms = super().add(record)
            return tuple(a.model_copy(update={"message": a.message + record.about["lr"]}) for a in alarms)

    monitor = Monitor(tmp_path / f"run{EVIL}", policy="halt", watch=Loud({2: "jump"}))
    monitor._recorder.failed("do a thing", EVIL)
    with pytest.raises(TrainingHalted) as halted:  # noqa: PT012 - one step late
        for step in range(3):
            monitor.update(**batch_of(step))
            monitor.step(about={"lr": EVIL})
    said = [str(halted.value), *(record.getMessage() for record in caplog.records)]
    assert len(said) == 3
    for text in said:
        assert "\\x1b[2J" in text
        assert not set(EVIL) - set("[2J") & set(text)


def test_a_closed_monitor_takes_nothing(tmp_path: Path, batch_of: Make) -> None:
    monitor = Monitor(tmp_path / "run")
    monitor.close()
    with pytest.raises(UsageError, match="closed"):
        monitor.update(**batch_of(0))


# -- its own failures -----------------------------------------------------------------------------------------------


def test_a_bug_in_the_watch_never_ends_the_training(
    tmp_path: Path, batch_of: Make, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        def add(self, record: StepRecord) -> tuple[Alarm, ...]:
            raise KeyError("a bug")

    with Monitor(tmp_path / "run", policy="halt", watch=Broken()) as monitor:
        for step in range(4):
            monitor.update(**batch_of(step))
            monitor.step()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "a bug" in caplog.text
    assert monitor.status is Status.UNKNOWN
    assert read_state(tmp_path / "run").status == "unknown"
    assert len(_lines(tmp_path / "run")) == 4


def test_a_folder_that_is_removed_never_ends_the_training(
    tmp_path: Path, batch_of: Make, caplog: pytest.LogCaptureFixture
) -> None:
    with Monitor(tmp_path / "run") as monitor:
        for step in range(4):
            monitor.update(**batch_of(step))
            numbers = monitor.step()
            if step == 1:
                shutil.rmtree(tmp_path / "run")
    assert numbers["onepolicy/step"] == 3
    assert sum("could not write a step" in record.message for record in caplog.records) == 1
    assert monitor.status is Status.UNKNOWN
    assert read_state(tmp_path / "run").status == "unknown"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_never_ends_the_training(
    tmp_path: Path, batch_of: Make, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monitor = Monitor(tmp_path / "run")
    write = os.write
    full = os.open("/dev/full", os.O_WRONLY)

    def half(handle: int, data: bytes) -> int:
        # the file takes a part of the line before the disk is full
        if os.fstat(handle).st_size % 100 == 0 and len(data) > 100:
            return write(handle, data[:100])
        return write(full, data)

    monitor.update(**batch_of(0))
    monitor.step()
    monkeypatch.setattr(os, "write", half)
    monitor.update(**batch_of(1))
    monitor.step()
    monkeypatch.undo()
    os.close(full)
    monitor.update(**batch_of(2))
    monitor.step()
    monitor.close()
    assert "the disk is full" in caplog.text
    assert monitor.status is Status.UNKNOWN
    assert [line["step"] for line in _lines(tmp_path / "run")] == [2, 3]


def test_a_step_that_does_not_reach_the_host_never_ends_the_training(
    tmp_path: Path, batch_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monitor = Monitor(tmp_path / "run", policy="halt")
    monitor.update(**batch_of(0))
    monkeypatch.setattr(monitor._ranks, "start", lambda vector: 1 / 0)
    monitor.step()
    monkeypatch.undo()
    monitor.update(**batch_of(1))
    assert monitor.step() == {}
    monitor.update(**batch_of(2))
    assert monitor.step()["onepolicy/step"] == 2
    monitor.close()
    assert monitor.status is Status.UNKNOWN
    assert "ZeroDivisionError" in monitor.why


def test_entries_of_a_mask_other_than_0_and_1_do_not_pass(tmp_path: Path, batch_of: Make) -> None:
    with Monitor(tmp_path / "run") as monitor:
        monitor.update(**batch_of(0) | {"sampled": torch.full((8, 16), 0.5)})
        monitor.step()
    assert monitor.status is Status.UNKNOWN
    assert "read the masks" in monitor.why


def test_a_failure_is_final_even_if_all_is_well_later(tmp_path: Path, batch_of: Make) -> None:
    class BrokenOnce(Scripted):
        def add(self, record: StepRecord) -> tuple[Alarm, ...]:
            if record.step == 1:
                raise ValueError("once")
            return super().add(record)

    with Monitor(tmp_path / "run", watch=BrokenOnce({})) as monitor:
        for step in range(3):
            monitor.update(**batch_of(step))
            monitor.step()
    assert monitor.status is Status.UNKNOWN


# -- going on -------------------------------------------------------------------------------------------------------


def _run(path: Path, batch_of: Make, steps: int, **options: Any) -> Monitor:
    with Monitor(path, **options) as monitor:
        for step in range(steps):
            monitor.update(**batch_of(step))
            monitor.step()
    return monitor


def test_the_same_folder_goes_on(tmp_path: Path, batch_of: Make) -> None:
    _run(tmp_path / "run", batch_of, 8, limits="bf16")
    watch = Scripted({})
    monitor = _run(tmp_path / "run", batch_of, 2, watch=watch, limits="bf16")
    assert [line["step"] for line in _lines(tmp_path / "run")] == list(range(1, 11))
    assert watch.seen == list(range(1, 11))
    assert monitor.status is Status.PASS
    assert read_state(tmp_path / "run").steps == 10


def test_a_failed_training_does_not_pass_by_going_on(tmp_path: Path, batch_of: Make) -> None:
    _run(tmp_path / "run", batch_of, 3, watch=Scripted({2: "jump"}))
    assert _run(tmp_path / "run", batch_of, 3).status is Status.FAIL


def test_a_training_that_was_killed_does_not_pass_by_going_on(tmp_path: Path, batch_of: Make) -> None:
    monitor = Monitor(tmp_path / "run")
    for step in range(3):
        monitor.update(**batch_of(step))
        monitor.step()
    _kill(monitor)
    after = _run(tmp_path / "run", batch_of, 2)
    assert after.status is Status.UNKNOWN
    assert "without close()" in after.why


def _kill(monitor: Monitor) -> None:
    folder = monitor._recorder._folder
    assert folder is not None
    folder.close()  # as the system does when a process dies


def test_a_training_that_does_its_lost_steps_again_passes(tmp_path: Path, batch_of: Make) -> None:
    monitor = Monitor(tmp_path / "run", limits="bf16")
    for step in range(9):
        monitor.update(**batch_of(step))
        monitor.step(step)
    _kill(monitor)  # step 8 was never looked at
    with Monitor(tmp_path / "run", limits="bf16") as after:
        for step in (7, 8, 9):
            after.update(**batch_of(step))
            after.step(step)
    assert [line["step"] for line in _lines(tmp_path / "run")] == [*range(8), 7, 8, 9]
    assert after.status is Status.PASS
    assert read_state(tmp_path / "run").steps == 11


def test_what_was_found_outlives_a_process_that_is_killed_at_once(tmp_path: Path, batch_of: Make) -> None:
    _run(tmp_path / "run", batch_of, 3, watch=Scripted({2: "jump"}))
    _kill(Monitor(tmp_path / "run"))
    with Monitor(tmp_path / "run") as monitor:
        monitor.update(**batch_of(0))
        monitor.step(4)
    assert monitor.status is Status.FAIL


def test_a_failure_is_written_down_when_it_happens(tmp_path: Path, batch_of: Make) -> None:
    monitor = Monitor(tmp_path / "run")
    monitor.update(**batch_of(0))
    monitor.update(**batch_of(0) | {"sampled": torch.ones(8, 15)})
    monitor.step()
    monitor.step()
    assert read_state(tmp_path / "run").failures.keys() == {"read a micro-batch"}
    assert read_state(tmp_path / "run").status == "running"


def test_what_a_killed_training_had_found_stays_found(tmp_path: Path, batch_of: Make) -> None:
    monitor = Monitor(tmp_path / "run", watch=Scripted({2: "jump"}))
    for step in range(1, 5):
        monitor.update(**batch_of(step))
        monitor.step(step)
    _kill(monitor)
    (tmp_path / "run" / "monitor.json").write_text(
        read_state(tmp_path / "run").model_copy(update={"alarms": {}}).model_dump_json()
    )
    with Monitor(tmp_path / "run", watch=Scripted({})) as after:
        after.update(**batch_of(4))
        after.step(4)
    assert after.status is Status.FAIL


def test_a_failed_training_stays_failed_without_its_state(tmp_path: Path, batch_of: Make) -> None:
    _run(tmp_path / "run", batch_of, 3, watch=Scripted({2: "jump"}))
    (tmp_path / "run" / "monitor.json").unlink()
    assert _run(tmp_path / "run", batch_of, 9, limits="bf16").status is Status.FAIL


def test_a_training_whose_state_is_gone_does_not_pass(tmp_path: Path, batch_of: Make) -> None:
    _run(tmp_path / "run", batch_of, 3, limits="bf16")
    (tmp_path / "run" / "monitor.json").unlink()
    after = _run(tmp_path / "run", batch_of, 9, limits="bf16")
    assert after.status is Status.UNKNOWN
    assert "monitor.json is absent" in after.why


def test_a_training_whose_steps_were_removed_does_not_pass(tmp_path: Path, batch_of: Make) -> None:
    _run(tmp_path / "run", batch_of, 10, limits="bf16")
    path = tmp_path / "run" / "steps.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:4]))
    after = _run(tmp_path / "run", batch_of, 9, limits="bf16")
    assert after.status is Status.UNKNOWN
    assert "has 4 steps" in after.why


def test_alarms_from_long_ago_count_when_a_training_goes_on(
    tmp_path: Path, batch_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(past_module, "HISTORY", 2)
    _run(tmp_path / "run", batch_of, 9, watch=Scripted({1: "limit"}))
    (tmp_path / "run" / "monitor.json").unlink()
    assert _run(tmp_path / "run", batch_of, 2).status is Status.FAIL


def test_a_killed_training_that_is_only_closed_does_not_pass(tmp_path: Path, batch_of: Make) -> None:
    monitor = Monitor(tmp_path / "run", limits="bf16")
    for step in range(12):
        monitor.update(**batch_of(step))
        monitor.step()
    _kill(monitor)
    assert _run(tmp_path / "run", batch_of, 0, limits="bf16").status is Status.UNKNOWN


@pytest.mark.parametrize(("cut", "kept", "word"), [(40, 2, "dropped"), (1, 3, "completed")])
def test_a_last_line_that_was_cut_off_is_mended_and_said(
    tmp_path: Path, batch_of: Make, caplog: pytest.LogCaptureFixture, cut: int, kept: int, word: str
) -> None:
    _run(tmp_path / "run", batch_of, 3)
    path = tmp_path / "run" / "steps.jsonl"
    path.write_bytes(path.read_bytes()[:-cut])
    _run(tmp_path / "run", batch_of, 1)
    assert word in caplog.text
    assert [line["step"] for line in _lines(tmp_path / "run")] == [*range(1, kept + 1), kept + 1]


def test_a_damaged_line_is_an_error_that_names_the_file(tmp_path: Path, batch_of: Make) -> None:
    _run(tmp_path / "run", batch_of, 2)
    path = tmp_path / "run" / "steps.jsonl"
    path.write_bytes(b"{}\n" + path.read_bytes())
    with pytest.raises(RunError, match="no step"):
        Monitor(tmp_path / "run")


def test_a_link_that_leads_out_of_the_folder_is_refused(tmp_path: Path, batch_of: Make) -> None:
    _run(tmp_path / "run", batch_of, 1)
    elsewhere = tmp_path / "elsewhere"
    (tmp_path / "run" / "steps.jsonl").rename(elsewhere)
    (tmp_path / "run" / "steps.jsonl").symlink_to(elsewhere)
    with pytest.raises(RunError, match="link"):
        Monitor(tmp_path / "run")


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match="no run of onepolicy"):
        Monitor(tmp_path / "run")


def test_two_processes_do_not_write_one_folder(tmp_path: Path) -> None:
    with Monitor(tmp_path / "run"), pytest.raises(RunError, match="another process"):
        Monitor(tmp_path / "run")
