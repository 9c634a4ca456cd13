"""Running statistics that can be merged: extremes and mean of one quantity, standard deviations and correlation."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from onepolicy.records.tokens import Float64

_NO_VARIANCE = 1e-28
"""a variance below this share of the squared mean is rounding of float64 deviations"""


@dataclass(slots=True, kw_only=True)
class Spread:
    """How many values came in, their sum and their extremes."""

    count: int = 0
    total: float = 0.0
    smallest: float = math.nan
    """NaN unless extremes were asked for"""
    largest: float = math.nan

    @property
    def mean(self) -> float:
        """NaN without a value."""
        return self.total / self.count if self.count else math.nan

    def add(self, values: Float64, *, extremes: bool) -> None:
        """Take in the values. Shape: [n]."""
        if not len(values):
            return
        self.count += len(values)
        self.total += float(values.sum())
        if not extremes:
            return
        self.smallest = float(np.fmin(self.smallest, values.min()))
        self.largest = float(np.fmax(self.largest, values.max()))


def _products(rows: Float64) -> Float64:
    """[k, n] -> [k, k] sums of products; two rows at a time, which numpy does in one sweep."""
    k = len(rows)
    products = np.empty((k, k))
    for i in range(k):
        for j in range(i, k):
            products[i, j] = products[j, i] = np.einsum("n,n->", rows[i], rows[j])
    return products


@dataclass(slots=True, kw_only=True, eq=False)
class Moments:
    """Means and centred second moments of k columns.

    Source: T. Chan, G. Golub, R. LeVeque, "Algorithms for Computing the Sample Variance" (1983), the pairwise update.
    """

    columns: tuple[str, ...]
    count: int = 0
    means: Float64 = field(init=False)
    """[k]"""
    products: Float64 = field(init=False)
    """[k, k] sums of products of deviations from the means"""

    def __post_init__(self) -> None:
        self.means = np.zeros(len(self.columns))
        self.products = np.zeros((len(self.columns),) * 2)

    def add(self, values: Float64) -> None:
        """Take in n values of each column. Shape: [k, n]. An infinite value makes its own column's moments NaN."""
        n = values.shape[1]
        if not n:
            return
        total = self.count + n
        with np.errstate(invalid="ignore", over="ignore"):
            means = values.mean(axis=1)
            centred = values - means[:, None]
            step = means - self.means
            between = np.outer(step, step) * (self.count * n / total)
            self.products += _products(centred) + between
            self.means += step * (n / total)
        self.count = total

    def deviation(self, column: str) -> float:
        """Standard deviation with n - 1 below, as torch.std has it; NaN of fewer than two values."""
        i = self.columns.index(column)
        return float(np.sqrt(self.products[i, i] / (self.count - 1))) if self.count > 1 else math.nan

    def correlation(self, one: str, other: str) -> float:
        """Pearson correlation of two columns; NaN if one does not vary."""
        i, j = self.columns.index(one), self.columns.index(other)
        variances = self.products.diagonal()[[i, j]]
        if not self.count or (variances <= _NO_VARIANCE * self.count * self.means[[i, j]] ** 2).any():
            return math.nan
        return float(self.products[i, j] / np.sqrt(variances[0]) / np.sqrt(variances[1]))
