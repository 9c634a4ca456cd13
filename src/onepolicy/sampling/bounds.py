"""A mean per token of which each token gives a value or a range."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from onepolicy.records.tokens import Float64

EXACT = 1e-6
"""a mean whose ends are closer is one number: the stored columns are float32"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Range:
    """Where each token's value lies. Shape: [N] each; -inf and inf where nothing is known."""

    low: Float64
    high: Float64


@dataclass(slots=True, kw_only=True)
class Mean:
    """The mean over tokens, with its ends. Blocks are added one after the other."""

    low_sum: float = 0.0
    high_sum: float = 0.0
    tokens: int = 0

    def add(self, values: Range) -> None:
        """Take in the tokens of a block."""
        self.low_sum += float(values.low.sum())
        self.high_sum += float(values.high.sum())
        self.tokens += len(values.low)

    @property
    def low(self) -> float:
        """Lower end; NaN without a token."""
        return self.low_sum / self.tokens if self.tokens else np.nan

    @property
    def high(self) -> float:
        """Upper end."""
        return self.high_sum / self.tokens if self.tokens else np.nan

    @property
    def is_known(self) -> bool:
        """Whether both ends are numbers."""
        return bool(np.isfinite(self.low) and np.isfinite(self.high))

    @property
    def is_exact(self) -> bool:
        """Whether the ends are one number."""
        return self.is_known and self.high - self.low <= EXACT
