"""The few places that prove something: bad values, gaps, and the rollouts that differ most."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from onepolicy.numerics.pair import Pair, per_rollout
from onepolicy.records.tokens import BoolArray, Float32, Float64, IntArray, StateArray, TokenState
from onepolicy.records.verdict import Evidence

KEPT = 5
ZERO_CONTRADICTION = -1e-4
"""a logprob of exactly 0.0 says p > 1 - 6e-8; the other side below this contradicts it by more than 7 nats of odds"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A token that proves something."""

    rollout_id: str
    position: int
    rollout_logprob: float
    trainer_logprob: float

    @property
    def evidence(self) -> Evidence:
        """The place with what both sides say there."""
        note = f"rollout {self.rollout_logprob:.4g}, trainer {self.trainer_logprob:.4g}"
        return Evidence(rollout_id=self.rollout_id, position=self.position, note=note)


@dataclass(slots=True, kw_only=True)
class Places:
    """In how many rollouts something was found, and where in the first of them."""

    rollouts: int = 0
    first: list[Place] = field(default_factory=list)

    def add(self, pair: Pair, found: BoolArray) -> None:
        """Take in a block; found: [N]."""
        positions = np.flatnonzero(found)
        if not len(positions):
            return
        rows, where = np.unique(np.searchsorted(pair.rollouts.offsets, positions, side="right") - 1, return_index=True)
        self.rollouts += len(rows)
        for row, i in list(zip(rows, where, strict=True))[: KEPT - len(self.first)]:
            self.first.append(_place(pair, int(row), int(positions[i])))


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """A rollout in which some compared tokens have no logprob."""

    rollout_id: str
    compared: int
    without: int
    side: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RolloutDetail:
    """One rollout in full, kept because it is among the worst. T tokens were compared."""

    rollout_id: str
    prompt_id: str
    token_ids: IntArray
    """[all tokens]"""
    positions: IntArray
    """[T] of the compared tokens"""
    rollout_logprobs: Float32
    """[T]"""
    trainer_logprobs: Float32
    """[T]"""
    mean_abs_d: float
    mean_k3: float
    sum_d: float
    max_abs_d: float

    @property
    def worst_place(self) -> Place:
        """The token with the largest |d|."""
        worst = self.worst
        return Place(
            rollout_id=self.rollout_id,
            position=int(self.positions[worst]),
            rollout_logprob=float(self.rollout_logprobs[worst]),
            trainer_logprob=float(self.trainer_logprobs[worst]),
        )

    @property
    def worst(self) -> int:
        """Index into the compared tokens of the largest |d|."""
        return int(np.abs(self.trainer_logprobs.astype(np.float64) - self.rollout_logprobs).argmax())


@dataclass(slots=True, kw_only=True)
class Worst:
    """The rollouts with the largest value of something."""

    of: Callable[[Pair], Float64]
    """block -> [R]"""
    key: Callable[[RolloutDetail], float]
    """the same of one rollout"""
    rollouts: list[RolloutDetail] = field(default_factory=list)

    def add(self, pair: Pair) -> None:
        """Take in a block."""
        values = np.where(pair.sums.column("tokens") > 0, self.of(pair), -1.0)
        lowest = self.key(self.rollouts[-1]) if len(self.rollouts) == KEPT else -1.0
        rows = [int(row) for row in np.argsort(-values, kind="stable")[:KEPT] if values[row] > lowest]
        found = [_detail(pair, row) for row in rows]
        self.rollouts = heapq.nlargest(KEPT, self.rollouts + found, key=self.key)


def mean_k3(pair: Pair) -> Float64:
    """[R] mean k3 of each rollout."""
    mean: Float64 = pair.sums.column("k3") / np.maximum(pair.sums.column("tokens"), 1)
    return mean


def max_abs_d(pair: Pair) -> Float64:
    """[R] largest |d| of each rollout."""
    return pair.sums.max_abs_d


def contradicted_zeros(pair: Pair) -> BoolArray:
    """[N] tokens for which one side says exactly 0.0 and the other contradicts it."""
    p, q = pair.rollout_logprobs, pair.trainer_logprobs
    with np.errstate(invalid="ignore"):
        found: BoolArray = pair.both & (((p == 0) & (q < ZERO_CONTRADICTION)) | ((q == 0) & (p < ZERO_CONTRADICTION)))
    return found


def invalid_values(pair: Pair) -> BoolArray:
    """[N] compared tokens for which one side gave something that is no logprob."""
    found: BoolArray = (pair.rollout_states == TokenState.INVALID) | (pair.trainer_states == TokenState.INVALID)
    return pair.compared & found


def excluded_tokens(pair: Pair) -> BoolArray:
    """[N] compared tokens that a side gives no probability, where the other side says anything about them too."""
    known = (TokenState.VALUE, TokenState.EXCLUDED)
    said: BoolArray = np.isin(pair.rollout_states, known) & np.isin(pair.trainer_states, known)
    return pair.compared & said & ~pair.both


def gaps_of(pair: Pair) -> list[Gap]:
    """The rollouts with a compared token that has no logprob on one side or both."""
    if len(pair.p) == np.count_nonzero(pair.compared):
        return []
    offsets = pair.rollouts.offsets
    asked = pair.compared & ~excluded_tokens(pair)  # of those it is known that their probability is zero
    p_gap = per_rollout(asked & (pair.rollout_states != TokenState.VALUE), offsets)
    q_gap = per_rollout(asked & (pair.trainer_states != TokenState.VALUE), offsets)
    either = per_rollout(asked & ~pair.both, offsets)
    return [
        Gap(
            rollout_id=pair.rollouts.rollout_ids[row],
            compared=int(pair.wanted[row]),
            without=int(either[row]),
            side="both sides" if p_gap[row] and q_gap[row] else "rollout side" if p_gap[row] else "trainer side",
        )
        for row in np.flatnonzero(either)
    ]


def _place(pair: Pair, row: int, index: int) -> Place:
    return Place(
        rollout_id=pair.rollouts.rollout_ids[row],
        position=index - int(pair.rollouts.offsets[row]),
        rollout_logprob=_logprob(pair.rollout_logprobs, pair.rollout_states, index),
        trainer_logprob=_logprob(pair.trainer_logprobs, pair.trainer_states, index),
    )


def _logprob(values: Float32, states: StateArray, index: int) -> float:
    """What a side says of a token: minus infinity where it excludes it, NaN where it says nothing."""
    return -math.inf if states[index] == TokenState.EXCLUDED else float(values[index])


def _detail(pair: Pair, row: int) -> RolloutDetail:
    tokens = pair.sums.column("tokens")[row]
    return RolloutDetail(
        rollout_id=pair.rollouts.rollout_ids[row],
        prompt_id=pair.rollouts.prompt_ids[row],
        token_ids=pair.rollouts.token_ids[pair.whole(row)].copy(),
        positions=np.flatnonzero(pair.both[pair.whole(row)]).astype(np.int32),
        rollout_logprobs=pair.p[pair.part(row)].copy(),
        trainer_logprobs=pair.q[pair.part(row)].copy(),
        mean_abs_d=float(pair.sums.column("abs_d")[row] / tokens),
        mean_k3=float(pair.sums.column("k3")[row] / tokens),
        sum_d=float(pair.sums.column("d")[row]),
        max_abs_d=float(pair.sums.max_abs_d[row]),
    )
