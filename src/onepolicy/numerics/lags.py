"""Do the two sides agree if one is moved by a few positions?"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from onepolicy.numerics.hybrid import PairedTop
from onepolicy.numerics.pair import Pair
from onepolicy.records.tokens import BoolArray, Float64, IntArray

LARGEST = 8
LAGS = tuple(range(-LARGEST, LARGEST + 1))
WORTH_A_SCAN = 0.2
"""mean |d| of a rollout in nats from which it is scanned: precision and quantisation stay below it, a shift does not"""
_MOST_TOKENS = 16_384
"""that are scanned in one block, in rollouts spread over it"""


def _per_lag() -> Float64:
    return np.zeros(len(LAGS))


@dataclass(slots=True, kw_only=True, eq=False)
class LagSums:
    """Sum of |difference| and number of pairs at each of `LAGS`, and of the same tokens without a lag."""

    total: Float64 = field(default_factory=_per_lag)
    unmoved: Float64 = field(default_factory=_per_lag)
    count: Float64 = field(default_factory=_per_lag)

    def add(self, lag: int, moved: Float64, unmoved: Float64) -> None:
        """Take in the differences of some tokens at one lag and without any. NaN in either is no pair: a few tokens at
        an end that are far apart would else be in the one mean and not in the other.
        """
        known = np.isfinite(moved) & np.isfinite(unmoved)
        self.total[lag + LARGEST] += float(np.abs(moved[known]).sum())
        self.unmoved[lag + LARGEST] += float(np.abs(unmoved[known]).sum())
        self.count[lag + LARGEST] += int(np.count_nonzero(known))

    def mean(self, lag: int) -> float:
        """NaN if there is no pair."""
        return self._per_pair(self.total, lag)

    def mean_unmoved(self, lag: int) -> float:
        """The mean without a lag over the tokens that have a pair at this one; NaN if there is none."""
        return self._per_pair(self.unmoved, lag)

    def _per_pair(self, sums: Float64, lag: int) -> float:
        pairs = self.count[lag + LARGEST]
        return float(sums[lag + LARGEST] / pairs) if pairs else float("nan")

    def pairs(self, lag: int) -> int:
        """How many there are."""
        return int(self.count[lag + LARGEST])


@dataclass(slots=True, kw_only=True, eq=False)
class Lags:
    """A scan over lags of rollouts in which the two sides are far apart.

    `values`: the rollout logprob of token t against the trainer logprob of token t + lag, one array moved against the
    other. `rows`: the trainer logprob of token t against what the rollout side's distribution at t + lag gives to that
    token, where its top list has it: the trainer read the logits of another position.
    """

    values: LagSums = field(default_factory=LagSums)
    rows: LagSums = field(default_factory=LagSums)
    rollouts: int = 0
    """that were scanned"""
    first: str = ""
    """the first of them"""

    def add(self, pair: Pair, top: dict[str, PairedTop]) -> None:
        """Take in one block."""
        rows = _far_apart(pair)
        if not rows:
            return
        self.rollouts += len(rows)
        self.first = self.first or pair.rollouts.rollout_ids[rows[0]]
        self._add_values(pair, rows)
        for row in rows:
            lists = top.get(pair.rollouts.rollout_ids[row])
            if lists is not None and lists.ids.size:
                self._add_rows(pair, row, lists)

    def _add_values(self, pair: Pair, rows: list[int]) -> None:
        places = np.concatenate([np.arange(*pair.rollouts.offsets[row : row + 2]) for row in rows])
        rollout = np.repeat(rows, [np.diff(pair.rollouts.offsets[row : row + 2])[0] for row in rows])
        known = pair.both[places]
        p = np.where(known, pair.rollout_logprobs[places], np.nan).astype(np.float64)
        q = np.where(known, pair.trainer_logprobs[places], np.nan).astype(np.float64)
        for lag in LAGS:
            here, there = _moved(len(places), lag)
            same = rollout[here] == rollout[there]
            self.values.add(lag, np.where(same, p[here] - q[there], np.nan), p[here] - q[here])

    def _add_rows(self, pair: Pair, row: int, lists: PairedTop) -> None:
        whole = pair.whole(row)
        ids, both = pair.rollouts.token_ids[whole], pair.both[whole]
        q = np.where(both, pair.trainer_logprobs[whole], np.nan).astype(np.float64)
        unmoved = q_against(ids, q, both, lists, 0)
        for lag in LAGS:
            self.rows.add(lag, q_against(ids, q, both, lists, lag), unmoved)


def q_against(ids: IntArray, q: Float64, both: BoolArray, lists: PairedTop, lag: int) -> Float64:
    """Trainer logprob of each token minus what the rollout side's list `lag` positions further on gives to that token.

    Shape: [T], [T], [T] -> [T]. NaN where there is no list, or the list does not have the token.
    """
    tokens = lists.positions - lag
    inside = (tokens >= 0) & (tokens < len(ids))
    tokens, listed, logprobs = tokens[inside], lists.ids[inside], lists.rollout[inside]
    hit = (listed == ids[tokens][:, None]) & both[tokens][:, None]
    given = np.where(hit.any(axis=1), np.where(hit, logprobs, -np.inf).max(axis=1), np.nan)
    difference = np.full(len(ids), np.nan)
    difference[tokens] = q[tokens] - given
    return difference


def _far_apart(pair: Pair) -> list[int]:
    """Rollouts that are worth a scan, spread over the block, of about as many tokens as are scanned."""
    tokens, apart = pair.sums.column("tokens"), pair.sums.column("abs_d")
    wanted = np.flatnonzero((tokens > 0) & (apart >= WORTH_A_SCAN * tokens))
    if not len(wanted):
        return []
    lengths = np.diff(pair.rollouts.offsets)[wanted]
    step = max(1, int(np.ceil(lengths.sum() / _MOST_TOKENS)))
    chosen: list[int] = wanted[::step].tolist()
    return chosen


def _moved(length: int, lag: int) -> tuple[slice, slice]:
    """Places t and t + lag that both lie within `length`."""
    first, pairs = max(-lag, 0), max(length - abs(lag), 0)
    return slice(first, first + pairs), slice(first + lag, first + lag + pairs)
