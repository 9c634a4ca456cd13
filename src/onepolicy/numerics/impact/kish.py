"""Effective sample size of weights that are given by their logs, whatever their size."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from onepolicy.records.tokens import Float64


@dataclass(slots=True, kw_only=True)
class LogWeights:
    """Sums of weights and of their squares, both in units of the largest weight so far, so that nothing overflows."""

    count: int = 0
    top: float = -math.inf
    """log of the largest weight"""
    first: float = 0.0
    second: float = 0.0

    def add(self, logs: Float64) -> None:
        """[M] more weights."""
        if not len(logs):
            return
        top = max(self.top, float(logs.max()))
        scaled, before = np.exp(logs - top), math.exp(self.top - top)
        self.first = self.first * before + float(scaled.sum())
        self.second = self.second * before * before + float(np.square(scaled, out=scaled).sum())
        self.top, self.count = top, self.count + len(logs)

    def effective_share(self) -> float | None:
        """Kish's (sum w)^2 / (n sum w^2): 1 if all weights are alike, 1/n if one has all; None without a weight.

        Source: L. Kish, Survey Sampling (1965). verl's rollout_is_eff_sample_size is the same of its weights.
        """
        return self.first**2 / (self.count * self.second) if self.count else None

    def largest_share(self) -> float | None:
        """The share of the sum of weights that the largest one has; None without a weight."""
        return 1 / self.first if self.count else None
