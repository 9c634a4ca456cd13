"""How a guard ends a training: on all ranks, if one has found something."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import torch.distributed as dist

from onepolicy.monitor.halted import TrainingHalted
from onepolicy.monitor.reference.record import REFERENCE_FILE, ReferenceAlarm
from onepolicy.visible import visible

T = TypeVar("T")


def sentence(alarm: ReferenceAlarm) -> str:
    """An alarm with its step, and the last one at which it was not so."""
    known = alarm.fine_at is not None and alarm.fine_at < alarm.step
    since = f" (at step {alarm.fine_at} it was not so)" if known else ""
    return f"step {alarm.step}{since}: {alarm.message}"


def halt(alarms: Sequence[ReferenceAlarm], folder: Path) -> TrainingHalted:
    """What ends the training; the process prints it."""
    found = "\n".join(f"  {alarm.kind}, {visible(sentence(alarm))}" for alarm in alarms)
    return TrainingHalted(
        "onepolicy: training halted, the reference policy is not what it must be.\n"
        f"{found}\n  record: {visible(str(folder / REFERENCE_FILE))}"
    )


def many_ranks() -> bool:
    """Whether other processes train with this one."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def is_first_rank() -> bool:
    """Whether this process is the one that writes."""
    return not many_ranks() or dist.get_rank() == 0


def from_all_ranks(own: T) -> list[T]:
    """What each rank has, by rank; all of them must ask."""
    if not many_ranks():
        return [own]
    answers = [own] * dist.get_world_size()
    dist.all_gather_object(answers, own)
    return answers
