"""All metrics of two columns of logprobs in one pass, as sums that can be merged.

The pass works on blocks that stay in the processor's cache and on as many threads as there are cores.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from onepolicy.records.tokens import Float32, Float64

_BLOCK_TOKENS = 1 << 15
"""float64 columns of this length, a handful of them, stay in a core's cache"""
_HISTOGRAM_SHIFT = 17
HISTOGRAM_BINS = 1 << (31 - _HISTOGRAM_SHIFT)
HISTOGRAM_ERROR = 2.0**-7
"""largest relative error of a percentile: a bin holds the float32 numbers that share exponent and 6 mantissa bits"""
_NO_VARIANCE = 1e-13
"""a variance below this share of the mean square is rounding of the sums: float32 spacing alone is (6e-8)^2"""

ROLLOUT_SUMS = ("tokens", "d", "abs_d", "k2", "k3", "ratio", "probability_difference")
"""columns of `RolloutSums.sums`: per-rollout sums over the compared tokens"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RolloutSums:
    """Per-rollout sums of R rollouts."""

    sums: Float64
    """[R, len(ROLLOUT_SUMS)]"""
    max_abs_d: Float64
    """[R] 0 for a rollout without a compared token"""

    def column(self, name: str) -> Float64:
        """[R] one of `ROLLOUT_SUMS`."""
        return self.sums[:, ROLLOUT_SUMS.index(name)]


@dataclass(slots=True, kw_only=True, eq=False)
class TokenTotals:
    """Sums over tokens that need no rollout: what correlation and percentiles are made of."""

    histogram: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(HISTOGRAM_BINS, dtype=np.int64))
    """[HISTOGRAM_BINS] counts of |d| in float32, by its leading bits"""
    moments: Float64 = field(default_factory=lambda: np.zeros(5))
    """sums of p, d, p squared, p d, d squared, where p is the rollout logprob"""
    max_probability_difference: float = 0.0
    bitwise_equal: int = 0
    unsaturated: int = 0
    """tokens with a rollout logprob below -1e-3: saturated ones agree trivially"""
    bitwise_equal_unsaturated: int = 0

    def add(self, other: TokenTotals) -> None:
        """Merge the totals of other tokens."""
        self.histogram += other.histogram
        self.moments += other.moments
        self.max_probability_difference = max(self.max_probability_difference, other.max_probability_difference)
        self.bitwise_equal += other.bitwise_equal
        self.unsaturated += other.unsaturated
        self.bitwise_equal_unsaturated += other.bitwise_equal_unsaturated

    @property
    def tokens(self) -> int:
        """How many tokens were compared."""
        return int(self.histogram.sum())

    def abs_d_percentile(self, percent: float) -> float:
        """The smallest |d| that at least `percent` of the tokens do not exceed; relative error `HISTOGRAM_ERROR`."""
        if not self.tokens:
            return float("nan")
        rank = max(round(percent * self.tokens / 100, 6), 1)  # 99.9 % of 1,000 is 999, not 999.0000000000001
        bin_index = int(np.searchsorted(np.cumsum(self.histogram), rank))
        if bin_index == 0:
            return 0.0
        edges = np.array([bin_index, bin_index + 1], dtype=np.uint32) << np.uint32(_HISTOGRAM_SHIFT)
        low, high = edges.view(np.float32).astype(np.float64)
        return float((low + high) / 2)

    def correlation(self) -> float:
        """Pearson correlation of the two columns; NaN if one does not vary."""
        n = self.tokens
        if not n:
            return float("nan")
        p, d, pp, pd, dd = self.moments / n
        rollout_variance, covariance_with_d = pp - p * p, pd - p * d
        trainer_variance = rollout_variance + 2 * covariance_with_d + dd - d * d
        if rollout_variance <= _NO_VARIANCE * pp or trainer_variance <= _NO_VARIANCE * (pp + 2 * pd + dd):
            return float("nan")
        return float((rollout_variance + covariance_with_d) / np.sqrt(rollout_variance * trainer_variance))


def summarise(
    *,
    trainer_logprobs: Float32,
    rollout_logprobs: Float32,
    offsets: npt.NDArray[np.int64],
    threads: int | None = None,
) -> tuple[RolloutSums, TokenTotals]:
    """Every metric that needs no distributions, for rollouts that lie one after the other.

    Shape: [N], [N] finite logprobs, [R + 1] with rollout r in entries offsets[r] to offsets[r + 1].
    Unit: nats. Memory beside the result: a few megabytes, whatever N is.
    """
    pieces = _pieces(offsets)
    result = RolloutSums(sums=np.zeros((len(offsets) - 1, len(ROLLOUT_SUMS))), max_abs_d=np.zeros(len(offsets) - 1))
    workers = threads or _cores()
    totals = TokenTotals()

    def work(share: list[tuple[int, int]]) -> TokenTotals:
        return _work(share, trainer_logprobs, rollout_logprobs, offsets, result)

    shares = [pieces[i::workers] for i in range(workers) if pieces[i::workers]]
    if len(shares) <= 1:
        done = [work(share) for share in shares]
    else:
        with ThreadPoolExecutor(len(shares)) as pool:
            done = list(pool.map(work, shares))
    for part in done:
        totals.add(part)
    return result, totals


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _pieces(offsets: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    """Ranges of whole rollouts of about `_BLOCK_TOKENS` tokens."""
    pieces, first = [], 0
    rollouts = len(offsets) - 1
    while first < rollouts:
        last = int(np.searchsorted(offsets, offsets[first] + _BLOCK_TOKENS, side="right")) - 1
        last = min(max(last, first + 1), rollouts)
        pieces.append((first, last))
        first = last
    return pieces


def _work(
    pieces: Sequence[tuple[int, int]],
    trainer: Float32,
    rollout: Float32,
    offsets: npt.NDArray[np.int64],
    result: RolloutSums,
) -> TokenTotals:
    totals = TokenTotals()
    for first, last in pieces:
        start, stop = offsets[first], offsets[last]
        lengths = np.diff(offsets[first : last + 1])
        rows = first + np.flatnonzero(lengths)
        if len(rows):
            starts = offsets[rows] - start
            _block(trainer[start:stop], rollout[start:stop], starts, rows, result, totals)
        result.sums[first:last, 0] = lengths
    return totals


def _block(
    trainer: Float32,
    rollout: Float32,
    starts: npt.NDArray[np.int64],
    rows: npt.NDArray[np.intp],
    result: RolloutSums,
    totals: TokenTotals,
) -> None:
    sums = result.sums
    d = np.subtract(trainer, rollout, dtype=np.float64)
    abs_d = np.abs(d)
    sums[rows, 1] = np.add.reduceat(d, starts)
    sums[rows, 2] = np.add.reduceat(abs_d, starts)
    result.max_abs_d[rows] = np.maximum.reduceat(abs_d, starts)
    _moments(trainer, rollout, d, abs_d, totals)
    scratch = np.multiply(d, d)
    sums[rows, 3] = np.add.reduceat(scratch, starts) / 2
    with np.errstate(over="ignore"):  # d above 709: the ratio and the KL are infinite, and said to be
        ratio_minus_1 = np.expm1(d, out=abs_d)
    np.subtract(ratio_minus_1, d, out=scratch)
    sums[rows, 4] = np.add.reduceat(scratch, starts)
    sums[rows, 5] = np.add.reduceat(ratio_minus_1, starts) + np.diff(np.append(starts, len(d)))
    difference = _abs_probability_difference(trainer, rollout, ratio_minus_1, scratch)
    sums[rows, 6] = np.add.reduceat(difference, starts)
    totals.max_probability_difference = max(totals.max_probability_difference, float(difference.max()))


def _abs_probability_difference(trainer: Float32, rollout: Float32, ratio_minus_1: Float64, out: Float64) -> Float64:
    """exp(rollout) |ratio - 1|, or, where the ratio is beyond float64, both probabilities apart."""
    np.exp(rollout, out=out, dtype=np.float64)
    if not np.isfinite(ratio_minus_1.max()):
        return np.abs(np.exp(trainer, dtype=np.float64) - out)
    np.multiply(out, ratio_minus_1, out=out)
    return np.abs(out, out=out)


def _moments(trainer: Float32, rollout: Float32, d: Float64, abs_d: Float64, totals: TokenTotals) -> None:
    bits = abs_d.astype(np.float32).view(np.uint32)
    np.right_shift(bits, np.uint32(_HISTOGRAM_SHIFT), out=bits)
    np.add.at(totals.histogram, bits.astype(np.intp), 1)
    p = rollout.astype(np.float64)
    # einsum, not dot: BLAS would start threads of its own inside ours
    totals.moments += (p.sum(), d.sum(), *(np.einsum("i,i->", a, b) for a, b in ((p, p), (p, d), (d, d))))
    equal = trainer.view(np.uint32) == rollout.view(np.uint32)
    unsaturated = rollout < -1e-3
    totals.bitwise_equal += int(np.count_nonzero(equal))
    totals.unsaturated += int(np.count_nonzero(unsaturated))
    np.logical_and(equal, unsaturated, out=equal)
    totals.bitwise_equal_unsaturated += int(np.count_nonzero(equal))
