"""Do the tokens that are compared begin and end where the two sides have logprobs?"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from onepolicy.numerics.pair import Pair
from onepolicy.records.tokens import BoolArray, TokenState

SIDES = ("rollout", "trainer")
ENDS = ("first", "last")
CERTAIN = -1e-4
"""above it a side is certain, and a 0.0 of the other one is a logprob"""


@dataclass(slots=True, kw_only=True, eq=False)
class Ends:
    """How often a rollout's first and last compared token has nothing on a side, or a 0.0 that stands for nothing.

    A mask that slipped by one position takes in a token of the prompt, or of the padding, for which no side computed a
    logprob: the same end is empty in nearly all rollouts, and hardly any place between.
    """

    rollouts: int = 0
    """with at least three compared tokens"""
    empty_ends: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros((len(SIDES), len(ENDS)), dtype=np.int64))
    """[2, 2] rollouts whose end is empty"""
    both_zero: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(len(ENDS), dtype=np.int64))
    """[2] rollouts whose end is exactly 0.0 on both sides: a certain token, or a place that both filled"""
    inner: int = 0
    """compared tokens that are none of these ends"""
    empty_inner: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(len(SIDES), dtype=np.int64))
    """[2] of these the empty ones"""
    first: str = ""
    """the first rollout with an empty end"""

    def add(self, pair: Pair) -> None:
        """Take in one block."""
        rows = np.flatnonzero(pair.wanted >= 3)
        places, after = np.flatnonzero(pair.compared), np.cumsum(pair.wanted)[rows]
        ends = np.stack([places[after - pair.wanted[rows]], places[after - 1]])
        empty = np.stack([_empty(pair, ends.ravel(), side).reshape(ends.shape) for side in SIDES])
        self.rollouts += len(rows)
        self.empty_ends += np.count_nonzero(empty, axis=2)
        zero = (pair.rollout_logprobs[ends] == 0) & (pair.trainer_logprobs[ends] == 0)
        self.both_zero += np.count_nonzero(zero, axis=1)
        self.inner += len(places) - ends.size
        self.empty_inner += [
            _count_empty(pair, places, side) - np.count_nonzero(empty[i]) for i, side in enumerate(SIDES)
        ]
        if not self.first and empty.any():
            self.first = pair.rollouts.rollout_ids[int(rows[np.argmax(empty.any(axis=(0, 1)))])]


def _count_empty(pair: Pair, places: npt.NDArray[np.intp], side: str) -> int:
    """Of all compared tokens. Nearly always none is missing and none is 0.0, which is fast to see."""
    values = pair.p if side == "rollout" else pair.q
    if len(values) == len(places) and (not len(values) or values.max() < 0):
        return 0
    return int(np.count_nonzero(_empty(pair, places, side)))


def _empty(pair: Pair, places: npt.NDArray[np.intp], side: str) -> BoolArray:
    """[n] places for which a side has no number, or 0.0 where the other side is not certain."""
    states, mine, other = (
        (pair.rollout_states, pair.rollout_logprobs, pair.trainer_logprobs)
        if side == "rollout"
        else (pair.trainer_states, pair.trainer_logprobs, pair.rollout_logprobs)
    )
    with np.errstate(invalid="ignore"):  # NaN is not above it: then nothing says that the 0.0 is a logprob
        zero = (mine[places] == 0) & ~(other[places] > CERTAIN)
    empty: BoolArray = (states[places] != TokenState.VALUE) | zero
    return empty
