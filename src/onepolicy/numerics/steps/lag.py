"""Weights that are declared to fall behind."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise

from onepolicy.records.step import StepRecord

LARGEST = 8
"""a lag of 8 is 8 or more"""
RISING = 4
"""steps over which the lag must grow each time"""
ABOVE_USUAL = 3
FILLING = 5
"""a lag that a run may grow into while its pipeline fills; later its own largest lag is the usual one"""
LEAST_HISTORY = 10
_SHARE = 0.05
"""of the tokens that make a version one in use"""


@dataclass(slots=True, kw_only=True)
class Lags:
    """The lag of the newest weights in use, step by step."""

    _newest: deque[int] = field(default_factory=lambda: deque(maxlen=64))

    def add(self, record: StepRecord) -> int | None:
        """The lag that it has come to, if it grows with each step as it does when weights are no longer sent."""
        newest = newest_lag(record)
        if newest is None:
            return None
        self._newest.append(newest)
        return newest if self._grows() else None

    def _grows(self) -> bool:
        seen = list(self._newest)
        last, before = seen[-RISING:], seen[:-RISING]
        if len(last) < RISING or not all(b > a or b == LARGEST for a, b in pairwise(last)):
            return False
        if (
            min(seen) == LARGEST
        ):  # never seen to grow: far apart from the start, or weights that have names and no numbers
            return False
        usual = max(before) if len(before) >= LEAST_HISTORY else FILLING
        return last[-1] >= usual + ABOVE_USUAL


def newest_lag(record: StepRecord) -> int | None:
    """The smallest lag that tokens of a step declare, a few strays apart; None if none declares one."""
    known = [cell for cell in record.by_lag if cell.lag >= 0]
    tokens = sum(cell.tokens for cell in known)
    return min((cell.lag for cell in known if cell.tokens >= _SHARE * tokens), default=None) if tokens else None
