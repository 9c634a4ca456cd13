"""The hybrid KL of one rollout from the top lists of both sides."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from onepolicy.errors import AlignmentError
from onepolicy.numerics.metrics import kl_hybrid, kl_k3
from onepolicy.numerics.pair import Pair
from onepolicy.records.reading import TopLists
from onepolicy.records.tokens import BoolArray, Float32, IntArray, TokenState, states_of


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


def pair_top(
    rollout_id: str, rollout: TopLists, trainer: TopLists, *, length: int, own: bool = False
) -> PairedTop | None:
    """The two lists side by side; None if the trainer's are of other tokens (it reported its own).

    length: of the rollout, in tokens. own: the trainer was given no lists to follow, as in a snapshot, so it may lack
    positions (a shorter context); those that both have are paired.
    Raises: AlignmentError if lists that were followed are of other positions, or positions lie outside the rollout.
    """
    for side in (rollout, trainer):
        _refuse_outside(rollout_id, side, length)
    if len(rollout.positions) != len(trainer.positions) or (rollout.positions != trainer.positions).any():
        if not own:
            raise AlignmentError(
                f"rollout {rollout_id}: the two sides keep top lists at other positions. Score the run again with the "
                "rollout side's lists."
            )
        rollout, trainer = _at_shared(rollout, trainer)
    if rollout.ids.shape != trainer.ids.shape or (rollout.ids != trainer.ids).any():
        return None
    return PairedTop(positions=rollout.positions, ids=rollout.ids, rollout=rollout.logprobs, trainer=trainer.logprobs)


def _refuse_outside(rollout_id: str, side: TopLists, length: int) -> None:
    if len(side.positions) and (side.positions.min() < 0 or side.positions.max() >= length):
        raise AlignmentError(
            f"rollout {rollout_id}: its top lists name positions outside its {length} tokens. The reading is damaged; "
            "score this run again."
        )


def _at_shared(rollout: TopLists, trainer: TopLists) -> tuple[TopLists, TopLists]:
    """Both lists at the positions that both have."""
    _, ours, theirs = np.intersect1d(rollout.positions, trainer.positions, return_indices=True)
    return _at(rollout, ours), _at(trainer, theirs)


def _at(side: TopLists, rows: np.ndarray) -> TopLists:
    return TopLists(positions=side.positions[rows], ids=side.ids[rows], logprobs=side.logprobs[rows])


def hybrid_sum(top: PairedTop, pair: Pair, row: int) -> tuple[float, int]:
    """The hybrid estimate summed over a rollout's compared tokens, k3 where it does not exist, and where it does.

    It exists where both lists hold K logprobs. The second number counts those tokens. Unit: nats.
    """
    whole = pair.whole(row)
    both = pair.both[whole]
    usable = _usable(top.rollout, top.trainer) & both[top.positions]
    positions = top.positions[usable]
    gate = np.zeros(len(both))
    gate[both] = kl_k3(trainer_logprobs=pair.q[pair.part(row)], rollout_logprobs=pair.p[pair.part(row)])
    gate[positions] = kl_hybrid(
        trainer_top=top.trainer[usable],
        rollout_top=top.rollout[usable],
        sampled_in_top=(top.ids[usable] == pair.rollouts.token_ids[whole][positions][:, None]).any(axis=1),
        k3=gate[positions],
    )
    return float(gate.sum()), len(positions)


def _usable(rollout: Float32, trainer: Float32) -> BoolArray:
    """[N, K], [N, K] -> [N] whether each pair is known.

    -inf is known on the rollout side: truncation removed the token. On the trainer side only where both removed it; a
    token that the trainer alone removed makes the KL infinite, and one that lies on the edge does so by chance.
    """
    p = (states_of(rollout) == TokenState.VALUE) | np.isneginf(rollout)
    q = (states_of(trainer) == TokenState.VALUE) | (np.isneginf(trainer) & np.isneginf(rollout))
    known: BoolArray = (p & q).all(axis=1)
    return known
