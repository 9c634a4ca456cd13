"""Some whole rollouts of a pair, few enough tokens for a core's cache."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np
import numpy.typing as npt

from onepolicy.numerics.pair import Pair
from onepolicy.records.tokens import BoolArray, Float64

PIECE_TOKENS = 1 << 15
"""float64 columns of this length, a handful of them, stay in a core's cache"""

NEGATIVE, ZERO, POSITIVE, NO_REWARD = -1, 0, 1, 2
"""sign of a rollout's advantage, and that its group lacks a reward"""

Signs = npt.NDArray[np.int8]


class Piece:
    """M tokens in R rollouts, none of them empty."""

    def __init__(self, d: Float64, lengths: npt.NDArray[np.int64], signs: Signs, correct: BoolArray) -> None:
        """Shape: [M] trainer - rollout in nats, [R] tokens, [R] advantage signs, [R] whether the reward is above 0."""
        self.d, self.lengths, self.signs, self.correct = d, lengths, signs, correct
        self._starts = np.cumsum(lengths) - lengths

    def sums(self, values: Float64 | BoolArray) -> Float64:
        """[M] -> [R]."""
        found: Float64 = np.add.reduceat(values, self._starts, dtype=np.float64)
        return found

    def largest(self, values: Float64) -> Float64:
        """[M] -> [R]."""
        found: Float64 = np.maximum.reduceat(values, self._starts)
        return found

    def spread(self, values: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        """[R] -> [M], each rollout's value at all of its tokens."""
        return np.repeat(values, self.lengths)

    @cached_property
    def log_product(self) -> Float64:
        """[R] log of each sequence ratio."""
        return self.sums(self.d)

    @cached_property
    def ratio(self) -> Float64:
        """[M] importance ratio of each token; infinite where it is beyond float64."""
        return _exp(self.d)

    @cached_property
    def sequence_ratio(self) -> Float64:
        """[M] product of the importance ratios of each token's rollout; infinite where it is beyond float64."""
        return np.repeat(_exp(self.log_product), self.lengths)


def pieces_of(pair: Pair, signs: Signs, correct: BoolArray) -> Iterator[tuple[npt.NDArray[np.intp], Piece]]:
    """The rollouts of a block that have a token to compare, in order: which rows of the block, and their tokens."""
    lengths = np.diff(pair.offsets)
    rows = np.flatnonzero(lengths)
    ends = np.cumsum(lengths[rows])
    first = 0
    while first < len(rows):
        before = int(ends[first - 1]) if first else 0
        last = max(int(np.searchsorted(ends, before + PIECE_TOKENS, side="right")), first + 1)
        chosen, part = rows[first:last], slice(before, int(ends[last - 1]))
        d = np.subtract(pair.q[part], pair.p[part], dtype=np.float64)
        yield chosen, Piece(d, lengths[chosen], signs[chosen], correct[chosen])
        first = last


def _exp(values: Float64) -> Float64:
    with np.errstate(over="ignore"):  # above 709: the ratio is infinite, and said to be
        found: Float64 = np.exp(values)
    return found
