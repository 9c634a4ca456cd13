"""A watch that raises planted alarms, and the steps that a monitor wrote."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from onepolicy.monitor.monitor import Monitor
from onepolicy.records.step import Alarm, StepRecord

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


def lines_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "steps.jsonl").read_text().splitlines()]


def watched(path: Path, batch_of: Make, steps: int, **options: Any) -> Monitor:
    with Monitor(path, **options) as monitor:
        for step in range(steps):
            monitor.update(**batch_of(step))
            monitor.step()
    return monitor
