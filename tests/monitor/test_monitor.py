"""A training that is watched: its numbers, masks, alarms and end."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scripted_watch import Make, Scripted, lines_of

from onepolicy.judgement.limits import Limits
from onepolicy.monitor.halted import TrainingHalted
from onepolicy.monitor.monitor import Monitor
from onepolicy.monitor.state import read_state
from onepolicy.records.verdict import Status


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
    lines = lines_of(tmp_path / "run")
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
    assert lines_of(tmp_path / "run")[0]["masked_rollouts"] == 3


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
