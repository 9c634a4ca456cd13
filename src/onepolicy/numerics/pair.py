"""One block of rollouts with both sides' logprobs, and which of its tokens can be compared."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from onepolicy.numerics.summary import RolloutSums, TokenTotals, summarise
from onepolicy.records.parquet import ReadingBlock, RolloutBlock
from onepolicy.records.tokens import BoolArray, Float32, IntArray, StateArray, TokenState, states_of


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pair:
    """N tokens in R rollouts, of which M have a logprob on both sides."""

    rollouts: RolloutBlock
    digests: list[str]
    """[R]"""
    compared: BoolArray
    """[N] tokens that are to be compared"""
    rollout_states: StateArray
    """[N]"""
    trainer_states: StateArray
    """[N]"""
    rollout_logprobs: Float32
    """[N]"""
    trainer_logprobs: Float32
    """[N]"""
    rollout_top1: IntArray | None
    """[N]"""
    trainer_top1: IntArray | None
    """[N]"""
    rollout_entropy: Float32 | None
    """[N] of the distribution that the rollout logprobs belong to"""
    rollout_varentropy: Float32 | None
    """[N]"""
    both: BoolArray
    """[N] tokens with a logprob on both sides"""
    wanted: npt.NDArray[np.int64]
    """[R] tokens of each rollout that are to be compared"""
    offsets: npt.NDArray[np.int64]
    """[R + 1] into the M tokens with a logprob on both sides"""
    p: Float32
    """[M] rollout logprobs"""
    q: Float32
    """[M] trainer logprobs"""
    sums: RolloutSums
    totals: TokenTotals

    @property
    def has_zeros(self) -> bool:
        """Whether a logprob is exactly 0.0 (or, by rounding, above it); nearly always none is, which is fast to see."""
        return bool(len(self.p)) and bool(max(self.p.max(), self.q.max()) >= 0)

    def whole(self, row: int) -> slice:
        """The tokens of one rollout among the N."""
        return slice(int(self.rollouts.offsets[row]), int(self.rollouts.offsets[row + 1]))

    def part(self, row: int) -> slice:
        """The tokens of one rollout among the M."""
        return slice(int(self.offsets[row]), int(self.offsets[row + 1]))


def pair_up(rollouts: RolloutBlock, digests: list[str], rollout: ReadingBlock, trainer: ReadingBlock) -> Pair:
    """Put two readings of the same tokens side by side. Nothing is changed, filled or dropped: states say it all."""
    compared = compared_tokens(rollouts)
    p_states, q_states = effective_states(rollout), effective_states(trainer)
    both = compared & (p_states == TokenState.VALUE) & (q_states == TokenState.VALUE)
    offsets = np.concatenate([[0], np.cumsum(per_rollout(both, rollouts.offsets))])
    p, q = rollout.logprobs[both], trainer.logprobs[both]
    # one thread: what reads the next block fills the other core
    sums, totals = summarise(trainer_logprobs=q, rollout_logprobs=p, offsets=offsets, threads=1)
    return Pair(
        rollouts=rollouts,
        digests=digests,
        compared=compared,
        rollout_states=p_states,
        trainer_states=q_states,
        rollout_logprobs=rollout.logprobs,
        trainer_logprobs=trainer.logprobs,
        rollout_top1=rollout.top1,
        trainer_top1=trainer.top1,
        rollout_entropy=rollout.entropy,
        rollout_varentropy=rollout.varentropy,
        both=both,
        wanted=per_rollout(compared, rollouts.offsets),
        offsets=offsets,
        p=p,
        q=q,
        sums=sums,
        totals=totals,
    )


def compared_tokens(rollouts: RolloutBlock) -> BoolArray:
    """[N] the sampled tokens; of a rollout without any, the tokens of its loss mask."""
    any_sampled = per_rollout(rollouts.sampled, rollouts.offsets) > 0
    if any_sampled.all():
        return rollouts.sampled
    chosen: BoolArray = np.where(
        np.repeat(any_sampled, np.diff(rollouts.offsets)), rollouts.sampled, rollouts.loss_mask
    )
    return chosen


def effective_states(reading: ReadingBlock) -> StateArray:
    """[N] the states as written, but INVALID where one says VALUE beside a number that is no logprob."""
    if reading.checked:
        return reading.states
    wrong = (reading.states == TokenState.VALUE) & (states_of(reading.logprobs) == TokenState.INVALID)
    wrong |= reading.states >= len(TokenState)
    return np.where(wrong, np.uint8(TokenState.INVALID), reading.states) if wrong.any() else reading.states


def counted_states(pair: Pair, states: StateArray) -> npt.NDArray[np.int64]:
    """[N] one side's states -> [len(TokenState)] how many of the tokens that are to be compared have each."""
    if len(pair.p) == np.count_nonzero(pair.compared):  # all have a number on both sides
        return np.bincount([TokenState.VALUE], weights=[len(pair.p)], minlength=len(TokenState)).astype(np.int64)
    return np.bincount(states[pair.compared], minlength=len(TokenState))


def per_rollout(flags: BoolArray, offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """[N], [R + 1] -> [R] how many flags are set in each rollout."""
    counts = np.zeros(len(offsets) - 1, dtype=np.int64)
    filled = np.diff(offsets) > 0
    if filled.any():  # reduceat takes no empty range
        counts[filled] = np.add.reduceat(flags, offsets[:-1][filled], dtype=np.int32)
    return counts
