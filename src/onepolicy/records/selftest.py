"""What a self-test found: each planted fault at each size, and each honest pair."""

from __future__ import annotations

import math
from enum import Enum

from onepolicy.records.finding import Outcome
from onepolicy.records.strict import Strict

LEAST_RIGHT = 0.95
"""share of the detected faults whose cause is named"""
LEAST_CONTROLS = 60
"""of a whole self-test: with none alarming, at most 5 % do (95 % confidence)"""


class Size(Enum):
    """How large a planted fault is, against the noise of its pair."""

    LARGE = "large"
    NEAR = "3 x noise"
    BELOW = "below noise"


class Way(Enum):
    """Where a fault is planted."""

    ENGINE = "engine"
    """the engine itself does it: an option, other weights, its sampling"""
    FUNCTION = "function"
    """a scoring function around a sound model, with the fault in its code"""
    COLUMNS = "columns"
    """after the engine, in the recorded columns"""


class Planted(Strict):
    """One fault at one size, and what the diagnosis said."""

    fault: str
    size: Size
    way: Way
    parameter: str
    """as it was planted: T = 0.7"""
    multiple: float
    """clipped mean |d| over that of the noise, measured"""
    right: tuple[str, ...]
    """names of causes that are a right answer; none: the right answer is that no cause is known"""
    detected: bool
    first: str
    """name of the first cause; empty for none"""
    outcome: Outcome | None
    """of the first cause"""
    among: tuple[str, ...]
    """all that are named as the cause, or one of several"""
    explained: float | None
    """share of the clipped excess"""
    said: str
    """the diagnosis in a sentence"""
    seconds: float

    @property
    def is_right(self) -> bool:
        """The right cause stands first, or among those that cannot be told apart; none is wrong below the noise."""
        if not self.first:
            return self.size is Size.BELOW or not self.right
        named = self.among or (self.first,)
        return any(_matches(name, self.right) for name in named)

    @property
    def passes(self) -> bool:
        """Of one size: found, if it is above the noise; below it, nothing wrong is said."""
        return self.is_right if self.size is Size.BELOW else self.detected


class Control(Strict):
    """An honest pair."""

    pair: str
    """what the two sides are"""
    multiple: float
    first: str
    """name of the first cause; empty for none. Two precisions that are further apart than usual may be called so"""
    alarmed: bool
    """whether anything else is said, or a difference is left without a cause"""
    said: str
    seconds: float


class SelfTest(Strict):
    """All of it."""

    model: str
    version: str
    planted: tuple[Planted, ...]
    controls: tuple[Control, ...]
    seconds: float

    @property
    def to_detect(self) -> tuple[Planted, ...]:
        """The faults above the noise."""
        return tuple(one for one in self.planted if one.size is not Size.BELOW)

    @property
    def missed(self) -> tuple[Planted, ...]:
        """Above the noise and not detected."""
        return tuple(one for one in self.to_detect if not one.detected)

    @property
    def wrong(self) -> tuple[Planted, ...]:
        """Above the noise, and the right cause is neither first nor among several."""
        return tuple(one for one in self.to_detect if not one.is_right)

    @property
    def wrong_below(self) -> tuple[Planted, ...]:
        """Below the noise, and a wrong cause is named."""
        return tuple(one for one in self.planted if one.size is Size.BELOW and not one.is_right)

    @property
    def alarms(self) -> tuple[Control, ...]:
        """Honest pairs of which something was said."""
        return tuple(one for one in self.controls if one.alarmed)

    @property
    def share_right(self) -> float:
        """Of the faults above the noise; 1 if there is none."""
        total = len(self.to_detect)
        return 1.0 - len(self.wrong) / total if total else 1.0

    @property
    def interval_right(self) -> tuple[float, float]:
        """95 % interval of the share (Wilson 1927)."""
        return wilson(len(self.to_detect) - len(self.wrong), len(self.to_detect))

    @property
    def passed(self) -> bool:
        """All that is above the noise was detected, enough causes are right, nothing honest alarmed."""
        is_right = self.share_right >= LEAST_RIGHT and not self.wrong_below
        return not self.missed and is_right and not self.alarms


def wilson(hits: int, total: int, *, z: float = 1.96) -> tuple[float, float]:
    """Interval of a share. Source: E. B. Wilson, J. Am. Stat. Assoc. 22 (1927) 209."""
    if not total:
        return 0.0, 1.0
    share, weight = hits / total, z * z / total
    half = z * math.sqrt(share * (1 - share) / total + weight / (4 * total))
    return (share + weight / 2 - half) / (1 + weight), (share + weight / 2 + half) / (1 + weight)


def _matches(name: str, right: tuple[str, ...]) -> bool:
    """A pair of causes is named `first and other`, in either order."""
    return name in right or any(set(name.split(" and ")) == set(one.split(" and ")) for one in right)
