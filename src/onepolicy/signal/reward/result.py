"""What was found about a reward model."""

from __future__ import annotations

from onepolicy.records.strict import Strict
from onepolicy.records.verdict import Status, Verdict


class RewardChecks(Strict):
    """All verdicts on one reward model."""

    model: str
    served: str = ""
    """the same one behind a server; empty if none was named"""
    pairs: int
    spread: float | None
    """standard deviation of two answers to one prompt, in units of the score; None if scores are not finite"""
    status: Status
    sentence: str
    """the answer in one sentence"""
    verdicts: tuple[Verdict, ...]

    @property
    def exit_status(self) -> int:
        """What the command ends with."""
        return self.status.exit_status
