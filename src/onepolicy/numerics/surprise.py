"""Are the sampled tokens draws from the distribution that was reported?"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from onepolicy.numerics.pair import Pair


@dataclass(slots=True, kw_only=True)
class Surprise:
    """How far the rollout logprobs lie from the entropy of their distributions, summed over tokens.

    For tokens drawn from the reported distribution -logprob - entropy has mean zero whatever came before: the sum is a
    martingale, so its variance is the sum of the varentropies, without clusters.
    """

    tokens: int = 0
    excess: float = 0.0
    """sum of -logprob - entropy, nats"""
    variance: float = 0.0
    """sum of varentropy, nats squared"""

    def add(self, pair: Pair) -> None:
        """Take in the tokens of a block whose entropy is known."""
        if pair.rollout_entropy is None or pair.rollout_varentropy is None:
            return
        entropy, variance = pair.rollout_entropy[pair.both], pair.rollout_varentropy[pair.both]
        known = np.isfinite(entropy) & np.isfinite(variance)
        self.tokens += int(np.count_nonzero(known))
        self.excess += float((-pair.p[known].astype(np.float64) - entropy[known]).sum())
        self.variance += float(variance[known].astype(np.float64).sum())

    @property
    def z(self) -> float:
        """The excess in standard deviations; NaN if nothing was drawn at random."""
        return self.excess / math.sqrt(self.variance) if self.variance > 0 else math.nan
