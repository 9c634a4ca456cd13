"""How a monitored training stands: what was found, what the monitor could not do, and the status that follows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from onepolicy.monitor.state import MonitorState
from onepolicy.records.step import Alarm, StepRecord
from onepolicy.records.verdict import Status

DECIDING = frozenset({"limit", "jump", "stale", "invalid"})
"""kinds of alarm that fail a training, and end it under the policy "halt" """
_MOST_FAILURES = 20


@dataclass(slots=True, kw_only=True)
class Standing:
    """Grows with every step; nothing that was found is taken back."""

    steps: int = 0
    first_step: int | None = None
    last_step: int | None = None
    without_tokens: int = 0
    """steps in which nothing was compared"""
    alarms: Counter[str] = field(default_factory=Counter)
    failures: dict[str, str] = field(default_factory=dict)
    """what the monitor could not do -> why, the first time"""
    masked_rollouts: int = 0
    closed: bool = False

    def add(self, record: StepRecord) -> None:
        """Count a step."""
        self.steps += 1
        self.first_step = record.step if self.first_step is None else self.first_step
        self.last_step = record.step
        self.without_tokens += not record.valid
        self.alarms.update(alarm.kind for alarm in record.alarms)
        self.masked_rollouts += record.masked_rollouts

    def fail(self, what: str, why: str) -> bool:
        """Keep what the monitor could not do; whether it is new."""
        new = what not in self.failures
        if new and len(self.failures) < _MOST_FAILURES:
            self.failures[what] = why[:500]
        return new

    def go_on(self, earlier: MonitorState) -> None:
        """Start from what an earlier process of the same training saw."""
        self.steps, self.first_step, self.last_step = earlier.steps, earlier.first_step, earlier.last_step
        self.without_tokens, self.masked_rollouts = earlier.without_tokens, earlier.masked_rollouts
        self.alarms.update(earlier.alarms)
        self.failures.update(earlier.failures)

    def recount(self, records: Sequence[StepRecord], *, steps: int) -> None:
        """After a process that was killed: `monitor.json` is older than the last steps that it wrote."""
        self.steps = steps
        if self.first_step is None and records:
            self.first_step = records[0].step
        self.last_step = records[-1].step if records else None
        self.without_tokens = max(self.without_tokens, sum(not record.valid for record in records))
        self.masked_rollouts = max(self.masked_rollouts, sum(record.masked_rollouts for record in records))
        found = Counter(alarm.kind for record in records for alarm in record.alarms)
        self.alarms |= found  # the larger of both counts

    @property
    def status(self) -> Status:
        """pass only of a training that was seen to its end, with every step within its limits."""
        return self._status_and_why()[0]

    @property
    def why(self) -> str:
        """What the status follows from."""
        return self._status_and_why()[1]

    def _status_and_why(self) -> tuple[Status, str]:
        deciding = {kind: count for kind, count in self.alarms.items() if kind in DECIDING}
        if deciding:
            return Status.FAIL, f"alarms: {_counts(deciding)}"
        if self.failures:
            what, why = next(iter(self.failures.items()))
            return Status.UNKNOWN, f"the monitor could not {what}: {why}"
        if self.alarms:
            return Status.UNKNOWN, f"alarms that do not decide: {_counts(self.alarms)}"
        if not self.steps or self.without_tokens:
            return Status.UNKNOWN, f"{self.without_tokens} of {self.steps} steps had no token to compare"
        if not self.closed:
            return Status.UNKNOWN, "the training has not ended"
        return Status.PASS, f"{self.steps} steps within their limits"


def decides(alarm: Alarm) -> bool:
    """Whether an alarm fails the training."""
    return alarm.kind in DECIDING


def _counts(alarms: dict[str, int]) -> str:
    return ", ".join(f"{kind} {count}" for kind, count in sorted(alarms.items()))
