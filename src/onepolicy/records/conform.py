"""What a conformance run found: each function of a subject in each case of its role."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from onepolicy.records.strict import Strict


class Answer(Enum):
    """Of one function in one case."""

    AGREES = "agrees"
    DIFFERS = "differs by design"
    """in a way that is known, named and explained"""
    WRONG = "wrong"
    NOT_TRIED = "not tried"


class Tried(Strict):
    """One function in one case."""

    role: str
    function: str
    """what the subject calls it; empty where it has none"""
    case: str
    """empty where no case was tried, as the subject has no such function"""
    answer: Answer
    found: str = ""
    """how it differs from the reference, or why it was not tried"""
    explanation: str = ""
    """name of what explains it, if that is known"""


class Planted(Strict):
    """A case that was tried."""

    role: str
    name: str
    planted: str
    otherwise: str
    """what goes wrong in training with a function that does not agree"""


class Explanation(Strict):
    """A known way in which functions of the subject differ."""

    role: str
    name: str
    why: str
    example: str
    """a few lines of Python that print what they show"""
    prints: str


class Conformance(Strict):
    """All of it."""

    subject: str
    version: str
    """of the subject; empty for a module"""
    explained: str
    """the version that the explanations are of; empty if there are none"""
    tried: tuple[Tried, ...]
    cases: tuple[Planted, ...]
    explanations: tuple[Explanation, ...]
    """that are named in `tried`"""
    seconds: float

    def of(self, answer: Answer) -> Sequence[Tried]:
        """What has this answer."""
        return [one for one in self.tried if one.answer is answer]

    @property
    def exit_status(self) -> int:
        """0 nothing is wrong; 1 something is; 3 nothing was tried."""
        if self.of(Answer.WRONG):
            return 1
        return 0 if self.of(Answer.AGREES) or self.of(Answer.DIFFERS) else 3
