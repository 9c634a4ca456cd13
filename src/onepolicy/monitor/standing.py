"""How a monitored training stands: what was found, what the monitor could not do, and the status that follows."""

from __future__ import annotations

from dataclasses import dataclass, field

from onepolicy.judgement.decide import decide, sentence
from onepolicy.judgement.limits import Limits
from onepolicy.monitor.state import DECIDING, MonitorState
from onepolicy.numerics.steps.verdicts import Training
from onepolicy.records.step import Alarm, StepRecord
from onepolicy.records.verdict import Status

_MOST_FAILURES = 20


@dataclass(slots=True, kw_only=True)
class Standing:
    """Grows with every step; nothing that was found is taken back."""

    limits: Limits = field(default_factory=Limits)
    training: Training = field(default_factory=Training)
    """what its steps showed; the timeline decides from the same"""
    steps: int = 0
    """that were looked at; fewer are in the file if writing failed"""
    first_step: int | None = None
    last_step: int | None = None
    alarms: dict[str, int] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    """what the monitor could not do -> why, the first time"""
    masked_rollouts: int = 0
    closed: bool = False

    def add(self, record: StepRecord) -> None:
        """Count a step."""
        self.steps += 1
        self.first_step = record.step if self.first_step is None else self.first_step
        self.last_step = record.step
        self.training.add(record, record.alarms)
        for alarm in record.alarms:
            self.alarms[alarm.kind] = self.alarms.get(alarm.kind, 0) + 1
        self.masked_rollouts += record.masked_rollouts

    def fail(self, what: str, why: str) -> bool:
        """Keep what the monitor could not do; whether it is new."""
        new = what not in self.failures
        if new and len(self.failures) < _MOST_FAILURES:
            self.failures[what] = why[:500]
        return new

    def go_on(self, earlier: MonitorState | None, training: Training, *, first: int | None, last: int | None) -> None:
        """Start from what earlier processes wrote: their steps, and `monitor.json`. What either says counts.

        Of a process that was killed the state is older than the steps; first, last: numbers of these.
        """
        self.training = training
        self.steps, self.first_step, self.last_step = training.steps, first, last
        self.alarms, self.masked_rollouts = dict(training.said), training.masked_rollouts
        if earlier is None:
            return
        self.steps = max(self.steps, earlier.steps)
        self.masked_rollouts = max(self.masked_rollouts, earlier.masked_rollouts)
        for kind, count in earlier.alarms.items():
            self.alarms[kind] = max(count, self.alarms.get(kind, 0))
        self.failures.update(earlier.failures)

    @property
    def status(self) -> Status:
        """pass only of a training that was seen to its end, and of which a timeline says so."""
        return self._status_and_why()[0]

    @property
    def why(self) -> str:
        """What the status follows from."""
        return self._status_and_why()[1]

    def _status_and_why(self) -> tuple[Status, str]:
        deciding = {kind: count for kind, count in self.alarms.items() if kind in DECIDING}
        if deciding:
            return Status.FAIL, f"alarms: {_counts(deciding)}"
        verdicts = self.training.verdicts(self.limits)
        status = decide(verdicts)
        if status is Status.FAIL:
            return status, _without_status(sentence(verdicts))
        if self.failures:
            what, why = next(iter(self.failures.items()))
            return Status.UNKNOWN, f"the monitor could not {what}: {why}"
        if self.alarms:
            return Status.UNKNOWN, f"alarms that do not decide: {_counts(self.alarms)}"
        if not self.closed:
            return Status.UNKNOWN, "the training has not ended"
        return status, _without_status(sentence(verdicts))


def decides(alarm: Alarm) -> bool:
    """Whether an alarm fails the training."""
    return alarm.kind in DECIDING


def _without_status(text: str) -> str:
    return text.partition(": ")[2]


def _counts(alarms: dict[str, int]) -> str:
    return ", ".join(f"{kind} {count}" for kind, count in sorted(alarms.items()))
