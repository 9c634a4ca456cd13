"""How a guarded reference stands: what was found, what the guard could not do, and the status that follows."""

from __future__ import annotations

from dataclasses import dataclass, field

from onepolicy.monitor.reference.record import Kind, ReferenceAlarm, ReferenceRecord
from onepolicy.records.verdict import Status

_MOST_FAILURES = 20
UNSEEN = "see the training's end"
"""a failure that another process may make good, by going on with the same folder"""


@dataclass(slots=True, kw_only=True)
class ReferenceStanding:
    """Grows with every check; nothing that was found is taken back."""

    alarms: dict[Kind, ReferenceAlarm] = field(default_factory=dict)
    """the first of each kind"""
    fine: dict[Kind, int] = field(default_factory=dict)
    """kind -> the last step at which nothing was found"""
    failures: dict[str, str] = field(default_factory=dict)
    """what the guard could not do -> why, the first time"""
    checks: int = 0
    last_step: int = 0
    """of the last check"""
    closed: bool = False

    def begin(self, step: int) -> None:
        """What later checks are held against is of this step."""
        self.fine |= {"moved": step, "weights": step}

    def looked(self, kind: Kind, step: int, message: str | None) -> ReferenceAlarm | None:
        """Take in a check's answer; the alarm, if it is the first of its kind."""
        if message is None:
            self.fine[kind] = step
            return None
        if kind in self.alarms:
            return None
        alarm = ReferenceAlarm(kind=kind, step=step, fine_at=self.fine.get(kind), message=message)
        self.alarms[kind] = alarm
        return alarm

    def fail(self, what: str, why: str) -> bool:
        """Keep what the guard could not do; whether it is new."""
        new = what not in self.failures
        if new and len(self.failures) < _MOST_FAILURES:
            self.failures[what] = why[:500]
        return new

    def go_on(self, earlier: ReferenceRecord) -> None:
        """Start from what an earlier process wrote: what it found stays found."""
        self.alarms = {alarm.kind: alarm for alarm in earlier.alarms}
        self.failures = {what: why for what, why in earlier.failures.items() if what != UNSEEN}
        self.checks, self.last_step = earlier.checks, earlier.last_step

    def take(self, alarms: tuple[ReferenceAlarm, ...], failures: dict[str, str]) -> None:
        """Take over what another rank has found."""
        for alarm in alarms:
            self.alarms.setdefault(alarm.kind, alarm)
        for what, why in failures.items():
            self.fail(what, why)

    @property
    def status(self) -> Status:
        """pass only of a training that was seen to its end, with every check made and nothing found."""
        return self._status_and_why()[0]

    @property
    def why(self) -> str:
        """What the status follows from."""
        return self._status_and_why()[1]

    def _status_and_why(self) -> tuple[Status, str]:
        if self.alarms:
            first = min(self.alarms.values(), key=lambda alarm: alarm.step)
            others = f" (and {len(self.alarms) - 1} more)" if len(self.alarms) > 1 else ""
            return Status.FAIL, f"{first.kind} at step {first.step}{others}: {first.message}"
        if self.failures:
            what, why = next(iter(self.failures.items()))
            return Status.UNKNOWN, f"the guard could not {what}: {why}"
        if not self.closed:
            return Status.UNKNOWN, "the training has not ended"
        if not self.checks:
            return Status.UNKNOWN, "the reference was never looked at"
        return Status.PASS, f"the same weights and logprobs, frozen and without dropout, in {self.checks} checks"
