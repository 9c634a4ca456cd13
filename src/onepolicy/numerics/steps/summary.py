"""One training step in a fixed number of sums, which ranks and micro-batches merge by adding."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field, fields

import numpy as np
import numpy.typing as npt

from onepolicy.judgement.limits import GATE_TOKENS
from onepolicy.numerics.buckets import CONFIDENCE_EDGES, confidence_buckets
from onepolicy.numerics.clusters import Clusters
from onepolicy.numerics.measurement import Measurement
from onepolicy.numerics.pair import Pair, counted_states, per_rollout
from onepolicy.numerics.summary import HISTOGRAM_BINS, ROLLOUT_SUMS, TokenTotals
from onepolicy.records.tokens import Float64, TokenState

CLUSTERS = 1024
"""prompt groups of a step share this many places, by their number or the CRC-32 of their name"""
LAGS = (0, 1, 2, 3, 4, 5, 6, 7, 8, -1)
"""steps by which the weights that sampled are behind the trainer's, or ahead of them; 8 is 8 or more, or weights of
another name; -1 is not known"""
CELL_SUMS = ("tokens", "d", "abs_d", "k2", "k3")
ADVANTAGE_SUMS = ("rollouts", "advantage", "advantage_squared", "d", "d_squared", "advantage_d")
"""over rollouts that have an advantage; d is a rollout's mean d"""
ZERO_ROLLOUT = 8
"""a rollout of so many tokens that are all 0.0 on both sides is counted; a shorter one may be certain by right"""
CONFIDENCES = len(CONFIDENCE_EDGES) - 1


def _zeros(*shape: int) -> Float64:
    return np.zeros(shape)


@dataclass(slots=True, kw_only=True, eq=False)
class StepSummary:
    """Sums over one step's tokens and rollouts; two of one step merge by `add`. Its size is the same for any step.

    Arrays are float64, so that all of it is one vector when ranks are merged.
    """

    step: int
    rollouts: Float64 = field(default_factory=lambda: _zeros(4))
    """all, without a token to compare, with a token that has a logprob on both sides, and of the latter those whose
    exp(sum of d) lies outside [0.5, 2]"""
    states: Float64 = field(default_factory=lambda: _zeros(2, len(TokenState)))
    """rollout side, trainer side: the compared tokens by `TokenState`"""
    sums: Float64 = field(default_factory=lambda: _zeros(len(ROLLOUT_SUMS)))
    """over the tokens with a logprob on both sides"""
    histogram: Float64 = field(default_factory=lambda: _zeros(HISTOGRAM_BINS))
    """as in `TokenTotals`"""
    moments: Float64 = field(default_factory=lambda: _zeros(5))
    """as in `TokenTotals`"""
    equal: Float64 = field(default_factory=lambda: _zeros(3))
    """bitwise equal, unsaturated, both, as in `TokenTotals`"""
    same: Float64 = field(default_factory=lambda: _zeros(3))
    """tokens that are exactly 0.0 on both sides, those of them in rollouts of `ZERO_ROLLOUT` tokens or more that have
    nothing else, and rollouts that are the same on both sides although some token is not certain"""
    clusters: Float64 = field(default_factory=lambda: _zeros(CLUSTERS, 5))
    """tokens, importance ratio, k3, and tokens and k3 with long rollouts weighted down, by prompt group"""
    cells: Float64 = field(default_factory=lambda: _zeros(len(LAGS), CONFIDENCES, len(CELL_SUMS)))
    """by lag and by the probability that the rollout policy gave to the token"""
    advantage: Float64 = field(default_factory=lambda: _zeros(len(ADVANTAGE_SUMS)))
    largest: Float64 = field(default_factory=lambda: _zeros(3))
    """largest |d|, |sum of d| of a rollout, and |difference of probabilities|: merged by maximum"""
    worst: Float64 = field(default_factory=lambda: _zeros(CLUSTERS))
    """largest mean k3 of a rollout by prompt group: merged by maximum"""

    def add(self, other: StepSummary) -> None:
        """Merge what another rank or micro-batch of the same step saw."""
        for name in _ARRAYS:
            mine, theirs = getattr(self, name), getattr(other, name)
            np.maximum(mine, theirs, out=mine) if name in BY_MAXIMUM else np.add(mine, theirs, out=mine)

    def add_pair(self, pair: Pair, *, lags: npt.NDArray[np.int64], advantages: Float64) -> None:
        """Take in a block. Shape: [R] lag of each rollout's weights (-1 unknown), [R] advantage (NaN if none)."""
        tokens, sequence = pair.sums.column("tokens"), np.abs(pair.sums.column("d"))
        self.rollouts += [len(tokens), (pair.wanted == 0).sum(), (tokens > 0).sum(), (sequence > np.log(2)).sum()]
        for row, states in enumerate((pair.rollout_states, pair.trainer_states)):
            self.states[row] += counted_states(pair, states)
        self.sums += pair.sums.sums.sum(axis=0)
        totals = pair.totals
        self.histogram += totals.histogram
        self.moments += totals.moments
        self.equal += [totals.bitwise_equal, totals.unsaturated, totals.bitwise_equal_unsaturated]
        largest = [pair.sums.max_abs_d.max(initial=0.0), sequence.max(initial=0.0), totals.max_probability_difference]
        np.maximum(self.largest, largest, out=self.largest)
        self._add_same(pair)
        self._add_clusters(pair)
        self._add_cells(pair, lags)
        self._add_advantages(pair, advantages)

    def measurement(self) -> Measurement:
        """What the numeric reductions and the checks on means and shares read; it has no rollouts to show."""
        everything, empty, valid, outside = self.rollouts.astype(np.int64).tolist()
        return Measurement(
            rollouts=everything,
            empty_rollouts=empty,
            valid_rollouts=valid,
            compared=int(self.states[0].sum()),
            rollout_states=self.states[0].astype(np.int64),
            trainer_states=self.states[1].astype(np.int64),
            totals=self._totals(),
            sums=self.sums.copy(),
            clusters=Clusters.from_sums(self.clusters, self.worst),
            sequence_outside=outside,
            max_abs_d=float(self.largest[0]),
            max_abs_sum_d=float(self.largest[1]),
        )

    def vector(self) -> tuple[Float64, Float64]:
        """All sums, and all maxima, each as one vector."""
        sums = [getattr(self, name).ravel() for name in _ARRAYS if name not in BY_MAXIMUM]
        return np.concatenate(sums), np.concatenate([getattr(self, name) for name in BY_MAXIMUM])

    def _totals(self) -> TokenTotals:
        equal, unsaturated, both = self.equal.astype(np.int64).tolist()
        return TokenTotals(
            histogram=self.histogram.astype(np.int64),
            moments=self.moments.copy(),
            max_probability_difference=float(self.largest[2]),
            bitwise_equal=equal,
            unsaturated=unsaturated,
            bitwise_equal_unsaturated=both,
        )

    def _add_same(self, pair: Pair) -> None:
        tokens = np.diff(pair.offsets)
        zero = per_rollout((pair.p == 0) & (pair.q == 0), pair.offsets)
        equal = per_rollout(pair.p == pair.q, pair.offsets) == tokens
        unsaturated = per_rollout(pair.p < -1e-3, pair.offsets) > 0
        whole = (zero == tokens) & (tokens >= ZERO_ROLLOUT)
        self.same += [zero.sum(), zero[whole].sum(), (equal & unsaturated).sum()]

    def _add_clusters(self, pair: Pair) -> None:
        tokens, ratio, k3 = (pair.sums.column(name) for name in ("tokens", "ratio", "k3"))
        weights = np.minimum(1.0, GATE_TOKENS / np.maximum(tokens, 1))
        places = np.array([zlib.crc32(name.encode()) % CLUSTERS for name in pair.rollouts.prompt_ids], dtype=np.intp)
        np.add.at(self.clusters, places, np.stack([tokens, ratio, k3, weights * tokens, weights * k3], axis=1))
        np.maximum.at(self.worst, places, k3 / np.maximum(tokens, 1))

    def _add_cells(self, pair: Pair, lags: npt.NDArray[np.int64]) -> None:
        lag = np.where(lags < 0, len(LAGS) - 1, np.minimum(lags, 8))
        d = pair.q.astype(np.float64) - pair.p
        cell = np.repeat(lag, np.diff(pair.offsets)) * CONFIDENCES + confidence_buckets(pair.p)
        with np.errstate(over="ignore"):
            columns = (np.ones_like(d), d, np.abs(d), d * d / 2, np.expm1(d) - d)
        size = len(LAGS) * CONFIDENCES
        counted = [np.bincount(cell, weights=column, minlength=size) for column in columns]
        self.cells += np.stack(counted, axis=1).reshape(self.cells.shape)

    def _add_advantages(self, pair: Pair, advantages: Float64) -> None:
        tokens = pair.sums.column("tokens")
        there = (tokens > 0) & np.isfinite(advantages)
        a, d = advantages[there], pair.sums.column("d")[there] / tokens[there]
        self.advantage += [len(a), a.sum(), (a * a).sum(), d.sum(), (d * d).sum(), (a * d).sum()]


BY_MAXIMUM = ("largest", "worst")
_ARRAYS = tuple(f.name for f in fields(StepSummary) if f.name != "step")
