"""What a check says: how many rows show something, and the first of them."""

from __future__ import annotations

from dataclasses import dataclass, field

from onepolicy.records.verdict import Evidence, Status, Verdict

KEPT = 5


@dataclass(slots=True, kw_only=True)
class Found:
    """A count, and evidence for the first `KEPT`."""

    count: int = 0
    evidence: list[Evidence] = field(default_factory=list)

    def add(self, where: str, note: str, *, column: int | None = None) -> None:
        """One more. where: `row 3`, or `prompt 'p1'`."""
        self.count += 1
        if len(self.evidence) < KEPT:
            self.evidence.append(Evidence(rollout_id=where, position=column, note=note))

    @property
    def first(self) -> str:
        """Where it was seen first."""
        return self.evidence[0].rollout_id if self.evidence else ""

    def failed(self, check: str, message: str, *, quantity: str, unit: str = "rows") -> Verdict:
        """The verdict for something of which there must be none."""
        return Verdict(
            check=check,
            status=Status.FAIL,
            quantity=quantity,
            value=self.count,
            limit=0,
            unit=unit,
            message=message,
            evidence=tuple(self.evidence),
        )


def passed(check: str, message: str, *, looked_at: int) -> Verdict:
    """Nothing was found among so many; where they are none, nothing was looked at, and that is unknown."""
    if not looked_at:
        return nothing(check)
    return Verdict(check=check, status=Status.PASS, message=message)


def nothing(check: str) -> Verdict:
    """What the check takes is given and holds nothing for it to look at, so that nothing passes."""
    what = "no row, no column, or only what a mask or length of 0 leaves out"
    return unknown(check, f"{check} has nothing to look at in this batch: {what}. Look at its masks and lengths.")


def unknown(check: str, message: str) -> Verdict:
    """It was looked at and cannot be said, so that nothing passes."""
    return Verdict(check=check, status=Status.UNKNOWN, message=message)


def not_checked(check: str, why: str) -> Verdict:
    """It was not looked at; this decides nothing."""
    return Verdict(check=check, status=Status.UNKNOWN, required=False, message=f"not checked: {why}.")
