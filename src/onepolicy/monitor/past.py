"""What a training's folder holds when a monitor is made: nothing, or what an earlier process left."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from onepolicy.errors import OnePolicyError
from onepolicy.judgement.limits import Limits
from onepolicy.monitor.folder import Folder
from onepolicy.monitor.journal import HISTORY
from onepolicy.monitor.state import MonitorState, write_state
from onepolicy.numerics.steps.verdicts import Training
from onepolicy.records.step import StepRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the monitor of a training was given."""

    path: Path
    policy: str
    limits: Limits
    limits_name: str
    about: dict[str, str]


@dataclass(slots=True, kw_only=True)
class Past:
    """What the first rank found in the folder, for all ranks."""

    steps: list[str] = field(default_factory=list)
    """the last records, as JSON"""
    training: Training = field(default_factory=Training)
    """what all of them showed"""
    first_step: int | None = None
    state: str = ""
    """of an earlier process, as JSON"""
    occasions: dict[str, int] = field(default_factory=dict)
    """why rollouts were kept -> of how many steps"""
    notes: list[str] = field(default_factory=list)


def taken_up(asked: Asked) -> tuple[Folder | None, Past | OnePolicyError]:
    """The folder and what it holds, or why it cannot be used: the other ranks wait for either."""
    try:
        folder = Folder(asked.path, asked.about)
    except OnePolicyError as error:
        return None, error
    try:
        past = _past(folder)
        write_state(asked.path, _begun(asked, folder.earlier))
    except OnePolicyError as error:
        folder.close()
        return None, error
    return folder, past


def _past(folder: Folder) -> Past:
    training, last, first = Training(), deque[StepRecord](maxlen=HISTORY), None
    for record in folder.journal.records():
        training.add(record, record.alarms)
        last.append(record)
        first = record.step if first is None else first
    return Past(
        steps=[record.model_dump_json() for record in last],
        training=training,
        first_step=first,
        state=folder.earlier.model_dump_json() if folder.earlier is not None else "",
        occasions=folder.occasions,
        notes=[*([folder.journal.note] if folder.journal.note else []), *folder.notes],
    )


def _begun(asked: Asked, earlier: MonitorState | None) -> MonitorState:
    """Running, and nothing of what was found is lost if this process is killed at once."""
    now = MonitorState(status="running", policy=asked.policy, limits=asked.limits_name)
    if earlier is None:
        return now
    return earlier.model_copy(update={"status": "running", "policy": now.policy, "limits": now.limits})
