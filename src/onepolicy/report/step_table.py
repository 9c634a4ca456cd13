"""A training's steps in a few rows and columns, as they are shown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from onepolicy.numerics.steps.lag import newest_lag
from onepolicy.numerics.steps.level import step_interval
from onepolicy.numerics.steps.median import median
from onepolicy.numerics.steps.series import declared_stale, sums
from onepolicy.records.step import StepRecord

LAG_GROUPS = ((1, 1, "1 step"), (2, 3, "2 or 3 steps"), (4, 8, "4 or more"))
"""smallest and largest lag, and how they are called"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Some steps in a row."""

    first: int
    last: int
    tokens: int
    """of the trainer's own weights"""
    k3: float
    """mean over these; NaN if there is none"""
    low: float
    """median of the steps' lower bounds; NaN if none has one"""
    high: float
    stale: int
    """tokens of older weights, as their versions say"""
    stale_k3: tuple[float, ...]
    """mean over the tokens of each of `LAG_GROUPS`; NaN if there is none"""
    newest_lag: int | None
    """largest over the steps; None if no version is known"""

    @property
    def steps(self) -> str:
        """121 to 140."""
        return f"{self.first}" if self.first == self.last else f"{self.first} to {self.last}"

    @property
    def all_stale_k3(self) -> float:
        """The largest of the groups; NaN if there is none."""
        return max((value for value in self.stale_k3 if not math.isnan(value)), default=math.nan)


def stretches(records: Sequence[StepRecord], most: int) -> list[Stretch]:
    """Steps in at most so many stretches of equal length."""
    size = max(1, math.ceil(len(records) / most))
    return [_stretch(records[i : i + size]) for i in range(0, len(records), size)]


def _stretch(records: Sequence[StepRecord]) -> Stretch:
    counted = [sums(record) for record in records]
    tokens, k3 = sum(n for n, _ in counted), sum(k for _, k in counted)
    bounds = [found for record in records if (found := step_interval(record)) is not None]
    lags = [lag for record in records if (lag := newest_lag(record)) is not None]
    return Stretch(
        first=records[0].step,
        last=records[-1].step,
        tokens=tokens,
        k3=k3 / tokens if tokens else math.nan,
        low=_median(low for _, low, _ in bounds),
        high=_median(high for _, _, high in bounds),
        stale=sum(map(declared_stale, records)),
        stale_k3=tuple(_stale_k3(records, low, high) for low, high, _ in LAG_GROUPS),
        newest_lag=max(lags, default=None),
    )


def _stale_k3(records: Sequence[StepRecord], low: int, high: int) -> float:
    cells = [cell for record in records for cell in record.by_lag if low <= cell.lag <= high]
    tokens = sum(cell.tokens for cell in cells)
    return sum(cell.tokens * cell.mean_k3 for cell in cells) / tokens if tokens else math.nan


def _median(values: Iterable[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return median(known) if known else math.nan
