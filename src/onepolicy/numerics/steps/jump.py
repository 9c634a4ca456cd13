"""A sudden change of the level, against the run's own history."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from onepolicy.numerics.steps.median import median
from onepolicy.records.tokens import Float64

HISTORY = 60
"""steps that the forecast is made from"""
LEAST_HISTORY = 20
"""with fewer there is no forecast"""
GAP = 3
"""steps between the history and what is held against it, so that a jump is not in its own forecast"""
RECENT = 3
LEAST_PAST = 30
"""past surprises that the scale is made from, at least"""
NEEDED_STEPS = LEAST_HISTORY + GAP + RECENT + LEAST_PAST
"""before so many steps no jump is looked for"""
PAST = 200
"""at most; the median of fewer is itself uncertain"""
THRESHOLD = 7.0
"""in MADs of past surprises; of benchmarks/steps.py"""
LEAST_JUMP = math.log(1.5)
"""a change by less than half is no jump, however quiet the run"""
SETTLE = 10
"""steps after a jump that give the new level"""
LEAST_EQUAL = 8
"""steps that are equal bit by bit, before it is a jump that they no longer are"""
_LEAST_SCALE = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Jump:
    """A change of the level of the series."""

    before: float
    """level that was forecast, in nats per token"""
    after: float
    score: float
    """its size in MADs"""

    @property
    def factor(self) -> float:
        """By how much the level rose, or fell if below 1."""
        return self.after / self.before


@dataclass(slots=True, kw_only=True)
class Jumps:
    """Online: one value after the other, constant memory."""

    _values: deque[float] = field(default_factory=lambda: deque(maxlen=HISTORY + GAP + RECENT))
    _past: deque[float] = field(default_factory=lambda: deque(maxlen=PAST))
    """surprises of steps that were no jump"""
    _settling: int = 0
    _expected: float = math.nan

    def add(self, value: float) -> Jump | None:
        """The jump that this value completes, up or down. After one, the level after it becomes the history."""
        self._values.append(value)
        if self._settling:
            self._settle()
            return None
        expected = self._forecast()
        if math.isnan(expected):
            return None
        recent = median(list(self._values)[-RECENT:])
        surprise = recent - expected
        score = self._score(surprise)
        if score >= THRESHOLD and abs(surprise) >= LEAST_JUMP:
            self._settling, self._expected = SETTLE, expected
            return Jump(before=math.exp(expected), after=math.exp(recent), score=score)
        self._past.append(surprise)
        return None

    @property
    def settling(self) -> bool:
        """Whether a jump was a few steps ago, so that no other is looked for."""
        return self._settling > 0

    def settle(self) -> None:
        """Take what follows for the new level: something else has named the change."""
        self._settling, self._expected = SETTLE, self._forecast()

    def _settle(self) -> None:
        """Lift the history to the new level when it is known, so that its slope and scatter go on to hold."""
        self._settling -= 1
        if self._settling:
            return
        values = list(self._values)
        new = SETTLE + RECENT - 1
        shift = median(values[-new:]) - self._expected
        kept = [] if math.isnan(shift) else [value + shift for value in values[:-new]]
        self._values.clear()
        self._values.extend(kept[: -RECENT or None] + values[-new:])

    def _forecast(self) -> float:
        history = list(self._values)[: -(GAP + RECENT)]
        if len(history) < LEAST_HISTORY:
            return math.nan
        return forecast(np.array(history[-HISTORY:]), ahead=GAP + RECENT / 2)

    def _score(self, surprise: float) -> float:
        if len(self._past) < LEAST_PAST:
            return 0.0
        scale = median(map(abs, self._past))
        return abs(surprise) / max(scale, _LEAST_SCALE)


@dataclass(slots=True, kw_only=True)
class Exactness:
    """Steps whose two sides were bitwise equal have no logarithm, and are watched by themselves."""

    _equal: int = 0
    _unequal: int = 0

    def add(self, *, equal: bool) -> int | None:
        """How many equal steps came before, once `RECENT` unequal ones have followed at least `LEAST_EQUAL`."""
        if equal:
            self._equal, self._unequal = self._equal + 1, 0
            return None
        self._unequal += 1
        if self._unequal < RECENT:
            return None
        before, self._equal = self._equal, 0
        return before if before >= LEAST_EQUAL else None


def forecast(history: Float64, *, ahead: float) -> float:
    """The value so many steps after the last one: median slope and median level. Source: Theil (1950), Sen (1968)."""
    i, j = _pairs(len(history))
    slopes = (history[j] - history[i]) / (j - i)
    middle = len(slopes) // 2
    slope = float(np.partition(slopes, middle)[middle])
    level = median((history - slope * np.arange(len(history))).tolist())
    return level + slope * (len(history) - 1 + ahead)


@lru_cache(maxsize=HISTORY + 1)
def _pairs(n: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    return np.triu_indices(n, k=1)
