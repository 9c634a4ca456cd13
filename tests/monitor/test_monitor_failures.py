"""What fails in the monitor itself never ends the training, and never passes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch
from scripted_watch import Make, Scripted, lines_of

from onepolicy.monitor.monitor import Monitor
from onepolicy.monitor.state import read_state
from onepolicy.records.step import Alarm, StepRecord
from onepolicy.records.verdict import Status


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
    assert len(lines_of(tmp_path / "run")) == 4


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
    assert [line["step"] for line in lines_of(tmp_path / "run")] == [2, 3]


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
