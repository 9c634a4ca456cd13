"""The mismatch over the steps of a training, as `onepolicy timeline` says and shows it."""

from __future__ import annotations

from typing import Literal

from onepolicy.records.step import Alarm, StepEvent, StepRecord
from onepolicy.records.strict import Strict
from onepolicy.records.verdict import Status, Verdict


class Timeline(Strict):
    """Steps, what they showed when they came, what that was with the whole run in view, and the answer."""

    path: str
    source: Literal["monitor", "files"]
    status: Status
    sentence: str
    """the answer in one sentence"""
    verdicts: tuple[Verdict, ...]
    events: tuple[StepEvent, ...]
    """named with the whole run in view"""
    alarms: tuple[Alarm, ...]
    """as they are said step by step"""
    mean_kl_limit: float
    notes: tuple[str, ...] = ()
    """what was odd about the files"""
    records: tuple[StepRecord, ...]

    @property
    def exit_status(self) -> int:
        """What the command ends with."""
        return self.status.exit_status

    def __str__(self) -> str:
        return self.sentence
