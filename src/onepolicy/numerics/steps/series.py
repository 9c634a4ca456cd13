"""Step records -> the series that jumps and growth are looked for in."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from onepolicy.records.step import ConfidenceCell, StepRecord

REFERENCE_STEPS = 4
"""the first steps of a run give the k3 that a token of each confidence is expected to have"""
SAME_VERSION_LAGS = (0, -1)


class Point(NamedTuple):
    """The series' value in a step."""

    step: int
    log_k3: float
    """-inf if both sides were equal"""


def same_version(record: StepRecord) -> tuple[ConfidenceCell, ...]:
    """The tokens of the trainer's own weights (or of no known version), by confidence where the record says."""
    if record.by_confidence:
        return record.by_confidence
    cells = [cell for cell in record.by_lag if cell.lag in SAME_VERSION_LAGS]
    tokens, k3 = sum(cell.tokens for cell in cells), sum(cell.tokens * cell.mean_k3 for cell in cells)
    return (ConfidenceCell(tokens=tokens, k3=k3),)


def sums(record: StepRecord) -> tuple[int, float]:
    """(tokens, sum of k3) of the same-version tokens."""
    cells = same_version(record)
    return sum(cell.tokens for cell in cells), sum(cell.k3 for cell in cells)


def declared_stale(record: StepRecord) -> int:
    """Tokens that say they come from other weights than the trainer's."""
    return sum(cell.tokens for cell in record.by_lag if cell.lag > 0)


@dataclass(slots=True, kw_only=True)
class Standardised:
    """Log of mean k3, over what is expected of a step's tokens by their confidence: indirect standardisation.

    Observed over expected k3, where a token of a bucket is expected to have what the bucket's tokens had in the first
    steps. So a policy that grows confident does not look like an engine that grows exact. A bucket that is empty now
    is in neither sum; one that was empty in the first steps has no expectation, and its tokens are left out of both.
    Nothing is filled. Source: the standardised ratio of epidemiology, observed / expected.
    """

    _first: list[tuple[int, tuple[ConfidenceCell, ...]]] = field(default_factory=list)
    _expected: tuple[float, ...] = ()
    """k3 per token of each bucket in the first steps, NaN where they had no token"""
    _mean: float = math.nan
    """k3 per token of the first steps"""

    def add(self, record: StepRecord) -> list[Point]:
        """This step's point; none until the first steps are there, then all of theirs at once.

        A step without a same-version token, or with an infinite sum, has no point.
        """
        cells = same_version(record)
        if not any(cell.tokens for cell in cells):
            return []
        if self._expected:
            return self._points([(record.step, cells)])
        self._first.append((record.step, cells))
        if len(self._first) < REFERENCE_STEPS:
            return []
        self._fix()
        points = self._points(self._first)
        self._first = []
        return points

    def _fix(self) -> None:
        cells = [cells for _, cells in self._first]
        tokens = [sum(cell.tokens for cell in bucket) for bucket in zip(*cells, strict=True)]
        k3 = [sum(cell.k3 for cell in bucket) for bucket in zip(*cells, strict=True)]
        self._expected = tuple(k / n if n else math.nan for n, k in zip(tokens, k3, strict=True))
        self._mean = sum(k3) / sum(tokens)

    def _points(self, steps: list[tuple[int, tuple[ConfidenceCell, ...]]]) -> list[Point]:
        return [Point(step, value) for step, cells in steps if not math.isnan(value := self._value(cells))]

    def _value(self, cells: tuple[ConfidenceCell, ...]) -> float:
        known = [(cell, k3) for cell, k3 in zip(cells, self._expected, strict=True) if not math.isnan(k3)]
        observed = sum(cell.k3 for cell, _ in known)
        expected = sum(cell.tokens * k3 for cell, k3 in known)
        if not math.isfinite(observed) or not math.isfinite(expected):
            return math.nan
        if observed <= 0:
            return -math.inf if any(cell.tokens for cell, _ in known) else math.nan
        if expected == 0:  # equal on both sides in the first steps: there is nothing to be in proportion to
            return math.log(observed / sum(cell.tokens for cell, _ in known))
        return math.log(self._mean * observed / expected)
