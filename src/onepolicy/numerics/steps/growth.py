"""Does the mismatch grow from step to step, as that of weights does that are no longer sent?"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise

from onepolicy.numerics.steps.median import median
from onepolicy.numerics.steps.series import Point

BLOCK = 3
"""steps whose median is one value of the growth, at least"""
BLOCKS = (BLOCK, 5)
"""the longer see through more scatter, and later: three of them must be there. Odd, so that a change of level within
one is never halved by the median"""
FLOOR = 30
"""steps before the growth that give the floor, at most"""
RISE = math.log(1.2)
"""growth from one block to the next, at least"""
RISE_NOISE = 2.0
"""the same, in standard deviations of such a change"""
_EVEN = 0.25
"""the smaller of two rises, over the larger"""
_CLEARLY = 0.8
_LEAST_BLOCKS = 5
_OF_MEDIAN = 1.25
"""standard deviation of a median, over that of a mean; of normal values"""
_MAD = 1.4826
"""of a normal distribution's standard deviation"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """The level of the last steps over that of the steps before."""

    floor: float
    """nats per token"""
    floor_steps: tuple[int, int]
    """first and last of those that it is of"""
    now: float
    blocks: tuple[float, float, float]
    """medians of some steps each, the last ones, in the log"""
    noise: float
    """standard deviation of the change from one such median to the next, in the log"""

    last: tuple[float, ...]
    """the steps of the blocks, in the log"""

    @property
    def total(self) -> float:
        """In the log."""
        return math.log(self.now / self.floor)

    @property
    def rising(self) -> bool:
        """Whether it rose from block to block, twice, much, and steadily: a change of level rises once."""
        first, second, third = self.blocks
        rises = (second - first, third - second)
        return min(rises) >= max(RISE, RISE_NOISE * self.noise, _EVEN * max(rises)) and self.steady

    @property
    def steady(self) -> bool:
        """Whether a line fits the last steps clearly better than one change of the level does."""
        return _misfit_of_line(self.last) < _CLEARLY * _misfit_of_step(self.last)


@dataclass(slots=True, kw_only=True)
class Growths:
    """Online: one value of the series after the other, constant memory. The first answer comes with the ninth."""

    _points: deque[Point] = field(default_factory=lambda: deque(maxlen=FLOOR + 3 * max(BLOCKS)))

    def add(self, point: Point) -> None:
        """Take in the next step's."""
        self._points.append(point)

    def clear(self) -> None:
        """Begin anew."""
        self._points.clear()

    def now(self, block: int = BLOCK) -> Growth | None:
        """From block to block of so many steps; None if there are too few."""
        if len(self._points) < 3 * block:
            return None
        steps, values = zip(*self._points, strict=True)
        last, before = values[-3 * block :], values[: -3 * block][-FLOOR:]
        first, second, third = (median(last[i : i + block]) for i in range(0, 3 * block, block))
        at_start = len(before) < BLOCK
        floor_steps = steps[-3 * block :][:block] if at_start else steps[: -3 * block][-FLOOR:]
        return Growth(
            floor=math.exp(first if at_start else median(before)),
            floor_steps=(floor_steps[0], floor_steps[-1]),
            now=math.exp(third),
            blocks=(first, second, third),
            last=last,
            noise=max(_noise(values, block), _noise_of_blocks(before, block)),
        )


def _misfit_of_line(values: Sequence[float]) -> float:
    """Sum of the distances to the line of median slope."""
    points = list(enumerate(values))
    slope = median((b - a) / (j - i) for (i, a), (j, b) in combinations(points, 2))
    return _spread([value - slope * i for i, value in points])


def _misfit_of_step(values: Sequence[float]) -> float:
    """Sum of the distances to the two levels that fit best."""
    return min(_spread(values[:i]) + _spread(values[i:]) for i in range(1, len(values)))


def _spread(values: Sequence[float]) -> float:
    middle = median(values)
    return sum(abs(value - middle) for value in values)


def _noise(values: Sequence[float], block: int) -> float:
    """From the changes of all steps around their trend, if steps do not depend on each other."""
    changes = [b - a for a, b in pairwise(values)]
    trend = median(changes)
    return _OF_MEDIAN * _MAD * median([abs(change - trend) for change in changes]) / math.sqrt(block)


def _noise_of_blocks(before: Sequence[float], block: int) -> float:
    """From the changes of earlier blocks; 0 if there are too few."""
    medians = [median(before[i : i + block]) for i in range(0, len(before) - block + 1, block)]
    return _MAD * median([abs(b - a) for a, b in pairwise(medians)]) if len(medians) > _LEAST_BLOCKS else 0.0
