"""The hybrid KL of one rollout from the top lists of both sides."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from onepolicy.errors import AlignmentError
from onepolicy.numerics.metrics import kl_hybrid, kl_k3
from onepolicy.numerics.pair import Pair
from onepolicy.records.reading import TopLists
from onepolicy.records.tokens import Float32, IntArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PairedTop:
    """Logprobs of the same K tokens on both sides at N positions of one rollout."""

    positions: IntArray
    """[N]"""
    ids: IntArray
    """[N, K]"""
    rollout: Float32
    """[N, K]"""
    trainer: Float32
    """[N, K]"""


def pair_top(rollout_id: str, rollout: TopLists, trainer: TopLists) -> PairedTop | None:
    """The two lists side by side; None if the trainer's are of other tokens (it reported its own).

    Raises: AlignmentError if the trainer's lists are of other positions.
    """
    if len(rollout.positions) != len(trainer.positions) or (rollout.positions != trainer.positions).any():
        raise AlignmentError(
            f"rollout {rollout_id}: the two sides keep top lists at other positions. Score the run again with the "
            "rollout side's lists."
        )
    if rollout.ids.shape != trainer.ids.shape or (rollout.ids != trainer.ids).any():
        return None
    return PairedTop(positions=rollout.positions, ids=rollout.ids, rollout=rollout.logprobs, trainer=trainer.logprobs)


def hybrid_minus_k3(top: PairedTop, pair: Pair, row: int) -> tuple[float, int]:
    """By how much the hybrid estimate of a rollout's compared tokens exceeds k3, and for how many tokens it exists.

    Unit: nats, summed over tokens.
    """
    whole = pair.whole(row)
    usable = np.isfinite(top.rollout).all(axis=1) & np.isfinite(top.trainer).all(axis=1)
    usable &= pair.both[whole][top.positions]
    positions = top.positions[usable]
    k3 = kl_k3(
        trainer_logprobs=pair.trainer_logprobs[whole][positions],
        rollout_logprobs=pair.rollout_logprobs[whole][positions],
    )
    inside = (top.ids[usable] == pair.rollouts.token_ids[whole][positions][:, None]).any(axis=1)
    hybrid = kl_hybrid(trainer_top=top.trainer[usable], rollout_top=top.rollout[usable], sampled_in_top=inside, k3=k3)
    return float(hybrid.sum() - k3.sum()), len(positions)
