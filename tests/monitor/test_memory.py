from __future__ import annotations

import gc
import logging
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onepolicy.monitor.monitor import Monitor
from onepolicy.records.step import Alarm, StepRecord

Make = Callable[..., dict[str, Any]]


class Often:
    """An alarm at every third step."""

    def add(self, record: StepRecord) -> tuple[Alarm, ...]:
        there = record.step % 3 == 0
        return (Alarm(step=record.step, kind="outliers", message="planted"),) if there else ()


def _resident() -> int:
    """Bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def _steps(monitor: Monitor, batches: list[dict[str, Any]], steps: int) -> None:
    for step in range(steps):
        monitor.update(**batches[step % len(batches)])
        monitor.step()


def _files(run: Path) -> int:
    return sum(1 for path in run.rglob("*") if path.is_file())


@pytest.mark.parametrize("watch", [None, Often()])
def test_memory_and_files_do_not_grow_with_the_steps(tmp_path: Path, batch_of: Make, watch: Any) -> None:
    monitor = Monitor(tmp_path / "run", watch=watch, limits="bf16")
    batches = [batch_of(step) for step in range(7)]
    _steps(monitor, batches, 400)  # evidence and histories are full, or nearly so
    tracemalloc.start()
    try:
        _steps(monitor, batches, 20)
        gc.collect()
        before, files = tracemalloc.get_traced_memory()[0], _files(tmp_path / "run")
        _steps(monitor, batches, 300)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 100_000
    assert _files(tmp_path / "run") - files <= 4 * 6  # the samples of 300 steps
    monitor.close()


@pytest.mark.full
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the process's size from /proc")
def test_ten_thousand_steps_take_no_more_memory_than_two_thousand(
    tmp_path: Path, batch_of: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, logger="onepolicy.monitor")  # what pytest keeps of warnings is not the monitor's
    monitor = Monitor(tmp_path / "run", watch=None, limits="bf16")
    batches = [batch_of(step) for step in range(7)]
    _steps(monitor, batches, 2000)
    before = _resident()
    _steps(monitor, batches, 8000)
    assert _resident() - before < 8 << 20
    assert _files(tmp_path / "run") < 400
    monitor.close()
