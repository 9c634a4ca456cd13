"""Is the policy beyond the limit? Asked after every step, so the interval is wider than that of one look."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from onepolicy.judgement.limits import ALPHA, MIN_CLUSTERS
from onepolicy.judgement.statistics import estimate_ratio, t_quantile
from onepolicy.numerics.steps.series import sums
from onepolicy.records.step import StepRecord

LOOK_ALPHA = 3.7e-5
"""one-sided level of one look: 1.7 times as wide, for normal errors, as one look at 1 %"""
WINDOWS = (1, 4, 16, 64)
"""steps that are looked at together: the last, and more of them for a small excess"""
_BETWEEN = 8
"""from so many steps on, their own scatter counts as well as that of the prompts within"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """Mean k3 of the same-version tokens of some steps, with the ends of an interval that holds at every look."""

    steps: int
    tokens: int
    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    tokens: int
    k3: float
    error: float
    """relative, over prompts; NaN if not known"""
    prompts: int


@dataclass(slots=True, kw_only=True)
class Levels:
    """The last steps' sums."""

    _steps: deque[_Step] = field(default_factory=lambda: deque(maxlen=max(WINDOWS)))

    def add(self, record: StepRecord) -> None:
        """Take in a step; one without a same-version token says nothing."""
        tokens, k3 = sums(record)
        if tokens:
            self._steps.append(_Step(tokens=tokens, k3=k3, error=_error(record, tokens), prompts=record.prompts))

    def over(self, steps: int) -> Level | None:
        """The level of the last steps; None if there are fewer, or too few prompts to say."""
        if len(self._steps) < steps:
            return None
        last = list(self._steps)[-steps:]
        tokens, k3 = sum(s.tokens for s in last), sum(s.k3 for s in last)
        exponent = _exponent(last, k3)
        if exponent is None:
            return None
        value = k3 / tokens
        return Level(
            steps=steps,
            tokens=tokens,
            value=value,
            low=value * math.exp(-exponent) if math.isfinite(value) else value,
            high=value * math.exp(exponent) if exponent < 700 else math.inf,
        )

    def beyond(self, limit: float) -> Level | None:
        """The level over the fewest of the last steps whose lower end is beyond the limit; None if none is."""
        for steps in WINDOWS:
            if self.mean(steps) > limit:
                level = self.over(steps)
                if level is not None and level.low > limit:
                    return level
        return None

    def longest(self) -> Level | None:
        """Over as many steps as there are."""
        return self.over(len(self._steps)) if self._steps else None

    def mean(self, steps: int) -> float:
        """Over the last steps, or as many as there are; NaN if there is none."""
        last = list(self._steps)[-steps:]
        return sum(s.k3 for s in last) / sum(s.tokens for s in last) if last else math.nan


def _error(record: StepRecord, tokens: int) -> float:
    """The gate's relative error, wider where only some of the tokens are of the trainer's own version."""
    gate = record.metrics.get("gate", 0.0)
    if record.standard_error is None or not gate > 0:
        return math.nan
    return record.standard_error / gate * math.sqrt(max(record.valid / tokens, 1.0))


def _exponent(steps: list[_Step], k3: float) -> float | None:
    """Of the bounds: t s / r. The larger of that over prompts and that over steps."""
    if k3 <= 0 or not math.isfinite(k3):
        return 0.0
    found = []
    prompts = sum(s.prompts for s in steps)
    if prompts >= MIN_CLUSTERS and not any(math.isnan(s.error) for s in steps):
        within = math.sqrt(sum((s.k3 * s.error) ** 2 for s in steps)) / k3
        found.append(_t(prompts - len(steps)) * within)
    if len(steps) >= _BETWEEN:
        between = estimate_ratio(
            sums=np.array([s.k3 for s in steps]), lengths=np.array([s.tokens for s in steps], dtype=np.float64)
        )
        found.append(_t(math.floor(between.effective_clusters) - 1) * between.standard_error / between.value)
    return max(found, default=None)


@lru_cache(maxsize=4096)
def _t(freedom: int) -> float:
    return t_quantile(max(float(freedom), 1.0), LOOK_ALPHA)


def step_interval(record: StepRecord) -> tuple[float, float, float] | None:
    """Mean k3 of one step's same-version tokens with its 99 % bounds over prompts, as one look sees them.

    The bounds are NaN if there are too few prompts; None if there is no such token, or its sum is infinite.
    """
    tokens, k3 = sums(record)
    if not tokens or not math.isfinite(k3):
        return None
    value, error = k3 / tokens, _error(record, tokens)
    exponent = t_quantile(max(record.prompts - 1, 1), ALPHA) * error
    return value, value * math.exp(-exponent), value * math.exp(min(exponent, 700.0))
