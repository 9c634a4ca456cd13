"""How many calls show something, and the first of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from onepolicy.records.verdict import Evidence, Status, Verdict
from onepolicy.sampling.audit.call import Call

KEPT = 5


@dataclass(slots=True, kw_only=True)
class Found:
    """A count, and evidence for the first `KEPT`."""

    count: int = 0
    evidence: list[Evidence] = field(default_factory=list)

    def add(self, call: Call, note: str, *, position: int | None = None) -> None:
        """One more. position: in the completion; it is kept as one in the full sequence."""
        self.count += 1
        if len(self.evidence) < KEPT:
            place = None if position is None else len(call.prompt) + position
            self.evidence.append(Evidence(rollout_id=call.rollout_id, position=place, note=note))

    @property
    def first(self) -> str:
        """The rollout that showed it first."""
        return self.evidence[0].rollout_id if self.evidence else ""

    def failed(self, check: str, message: str, *, quantity: str) -> Verdict:
        """The verdict for something of which there must be none."""
        return Verdict(
            check=check,
            status=Status.FAIL,
            quantity=quantity,
            value=self.count,
            limit=0,
            unit="calls",
            message=message,
            evidence=tuple(self.evidence),
        )


def passed(check: str, message: str, *, required: bool = True) -> Verdict:
    """Nothing was found."""
    return Verdict(check=check, status=Status.PASS, required=required, message=message)


def unknown(check: str, message: str, *, required: bool = False) -> Verdict:
    """Something cannot be said, or was not looked at."""
    return Verdict(check=check, status=Status.UNKNOWN, required=required, message=message)


def shares(count: int, total: int, what: str) -> str:
    """`31 of 100 completions (31 %)`."""
    return f"{count:,} of {total:,} {what} ({count / total:.0%})" if total else f"0 {what}"
