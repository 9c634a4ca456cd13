"""Which steps of a series stand apart from those before, and where a new level begins."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise

import numpy as np

from onepolicy.numerics.steps.jump import forecast
from onepolicy.numerics.steps.median import median
from onepolicy.numerics.steps.series import Point

BASE = 20
"""steps that give the level before"""
LEAST_BASE = 5
LEAST = math.log(1.4)
"""less is no departure, however quiet the run"""
LEAST_SINGLE = math.log(2.0)
SIGMAS, SINGLE_SIGMAS = 5.0, 7.0
"""standard deviations of a median of three, and of one step"""
SETTLED = 10
"""steps without growth after which a departure is the new level"""
AROUND, BESIDE = 12, 5
"""points before and after a jump on top of a growth"""
SINGLE = 2
"""steps of a departure that stands alone, at most"""
_MAD = 1.4826
"""of a normal distribution's standard deviation"""
_MEDIAN_OF_3 = 0.67
"""standard deviation of a median of three over that of one"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Departure:
    """Points that stand apart from the level before."""

    points: tuple[Point, ...]
    base: float
    """level before, in the log"""
    noise: float
    """standard deviation of one step, in the log"""
    returned: bool
    """whether the level before came back"""

    @property
    def single(self) -> bool:
        """One or two steps that stand alone."""
        return self.returned and len(self.points) <= SINGLE

    @property
    def growing(self) -> bool:
        """Whether it went up from third to third, on the whole by half or more."""
        return grows([point.log_k3 for point in self.points], self.noise)


@dataclass(slots=True, kw_only=True)
class _Search:
    noise: float
    found: list[Departure] = field(default_factory=list)
    base: deque[float] = field(default_factory=lambda: deque(maxlen=BASE))
    apart: list[Point] = field(default_factory=list)
    near: list[Point] = field(default_factory=list)
    """the last steps of a departure that are at the level before"""

    def close(self, *, returned: bool) -> None:
        """End the departure. If it did not return, its last steps are the new level."""
        points = tuple(self.apart if returned else [*self.apart, *self.near])
        self.found.append(Departure(points=points, base=median(self.base), noise=self.noise, returned=returned))
        if not returned:
            self.base.clear()
            self.base.extend(point.log_k3 for point in points[-SETTLED:])
        else:
            self.base.extend(point.log_k3 for point in self.near)
        self.apart, self.near = [], []


def departures(points: Sequence[Point]) -> list[Departure]:
    """In order. The scatter is that of the whole run's changes from step to step, so that drift is none."""
    search = _Search(noise=noise_of([point.log_k3 for point in points]))
    for i, point in enumerate(points):
        smooth = median(p.log_k3 for p in points[max(i - 1, 0) : i + 2])
        _take(search, point, smooth)
    if search.apart:
        search.close(returned=len(search.near) >= SINGLE)
    return [found for found in search.found if not found.single or _far(found)]


def _far(departure: Departure) -> bool:
    """Whether one of its points is far from the level before by itself."""
    farthest = max(abs(point.log_k3 - departure.base) for point in departure.points)
    return farthest > _alone(departure.noise)


def rise_within(departure: Departure) -> tuple[Point, float, float] | None:
    """A jump on top of a growth: its first point, the level that was forecast there, and the one that came."""
    points = departure.points
    best, found = max(math.log(1.5), SIGMAS * departure.noise), None
    for i in range(AROUND, len(points) - BESIDE + 1):
        before = np.array([point.log_k3 for point in points[i - AROUND : i]])
        expected = forecast(before, ahead=(BESIDE + 1) / 2)
        came = median(point.log_k3 for point in points[i : i + BESIDE])
        if came - expected > best:
            best, found = came - expected, (points[i], expected, came)
    return found


def onset(departure: Departure) -> int | None:
    """The first step of a growth that began below the noise; None if its shape does not say.

    What m missed updates add grows with the square of m, so its root is a line that begins one step before.
    """
    points = departure.points[:AROUND]
    added = [math.exp(point.log_k3) - math.exp(departure.base) for point in points]
    if len(points) < LEAST_BASE or min(added) <= 0:
        return None
    roots = [math.sqrt(value) for value in added]
    steps = [point.step for point in points]
    slope = median((b - a) / (t - s) for (s, a), (t, b) in combinations(zip(steps, roots, strict=True), 2))
    if slope <= 0:
        return None
    zero = median(step - root / slope for step, root in zip(steps, roots, strict=True))
    return round(zero) + 1 if steps[0] - BASE <= zero < steps[0] else None


def _take(search: _Search, point: Point, smooth: float) -> None:
    if len(search.base) < LEAST_BASE:
        search.base.append(point.log_k3)
        return
    if not _is_apart(search, point, smooth):
        if not search.apart:
            search.base.append(point.log_k3)
            return
        search.near.append(point)
        if len(search.near) > SINGLE:
            search.close(returned=True)
        return
    search.apart += [*search.near, point]
    search.near = []
    if len(search.apart) >= SETTLED and not _still_growing(search):
        search.close(returned=False)


def _is_apart(search: _Search, point: Point, smooth: float) -> bool:
    base = median(search.base)
    lasting = abs(smooth - base) > max(LEAST, SIGMAS * _MEDIAN_OF_3 * search.noise)
    here = abs(point.log_k3 - base) > max(LEAST, SIGMAS * _MEDIAN_OF_3 * search.noise)
    alone = abs(point.log_k3 - base) > _alone(search.noise)
    return (lasting and (here or bool(search.apart))) or alone


def _alone(noise: float) -> float:
    return max(LEAST_SINGLE, SINGLE_SIGMAS * noise)


def _still_growing(search: _Search) -> bool:
    values = [point.log_k3 for point in search.apart]
    if grows(values, search.noise):
        return True  # what grew stays one thing until the level before is back
    return values[-1] > values[0] and grows(values[-SETTLED:], search.noise)


def grows(values: Sequence[float], noise: float) -> bool:
    """Whether the last third is above the middle one, that above the first, and the whole by half or more."""
    third = len(values) // 3
    if not third:
        return False
    first, middle, last = (median(values[i * third : (i + 1) * third]) for i in range(3))
    return last > middle > first and last - first > max(math.log(1.5), 4 * noise / math.sqrt(third))


def noise_of(values: Sequence[float]) -> float:
    """Standard deviation of one step around its level: from the changes, whose median a few jumps do not move."""
    if len(values) < 2:
        return 0.0
    return _MAD * median(abs(b - a) for a, b in pairwise(values)) / math.sqrt(2)
