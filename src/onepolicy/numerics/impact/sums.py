"""All of a run's impact, added up block by block."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onepolicy.numerics.impact import clip as clips
from onepolicy.numerics.impact import sequences
from onepolicy.numerics.impact.advantages import Advantages
from onepolicy.numerics.impact.choices import CHOICES, OFF_POLICY
from onepolicy.numerics.impact.clip import ClipRange, clip_sums, updated_sums
from onepolicy.numerics.impact.corrections import Correction
from onepolicy.numerics.impact.groups import GroupSums
from onepolicy.numerics.impact.kish import LogWeights
from onepolicy.numerics.impact.piece import NEGATIVE, NO_REWARD, POSITIVE, ZERO, Piece, pieces_of
from onepolicy.numerics.impact.replay import Replay, columns_of
from onepolicy.numerics.pair import Pair
from onepolicy.records.tokens import BoolArray, Float32, Float64

_SIGNS = {"positive": POSITIVE, "negative": NEGATIVE, "zero": ZERO, "no_reward": NO_REWARD}
_OF_PAIR = {"k1": "d", "k2": "k2", "k3": "k3", "ratio": "ratio", "tokens": "tokens"}
"""group sums that the pair has already: name -> its column"""


class ImpactSums:
    """Takes in the blocks of a run in its order; memory is that of its groups, and 16 bytes for each rollout."""

    def __init__(self, *, advantages: Advantages, clip: ClipRange, choices: Sequence[Correction] | None = None) -> None:
        self.advantages, self.clip = advantages, clip
        if choices is None:
            choices = (*CHOICES, OFF_POLICY) if advantages.complete else CHOICES
        self.replays = [Replay(correction=one) for one in choices]
        names = [name for one in choices for name in columns_of(one)]
        self.groups = GroupSums([*_OF_PAIR, *clips.COLUMNS, *sequences.COLUMNS, *names])
        self.token_weights, self.sequence_weights = LogWeights(), LogWeights()
        self.tokens_by_advantage = dict.fromkeys(_SIGNS, 0)
        self.missing = self.updated_tokens = self._rows = 0
        self._logs: list[Float64] = []
        self._lengths: list[Float64] = []

    def add(self, pair: Pair, updated: tuple[Float32, BoolArray] | None = None) -> None:
        """A block; updated: [M] logprobs of the updated trainer of the pair's M tokens, and which of them are known."""
        rows = slice(self._rows, self._rows + len(pair.digests))
        self._rows = rows.stop
        self.missing += int(np.count_nonzero(pair.compared)) - len(pair.p)
        places = self.groups.places(pair)
        there = places >= 0
        of_pair = {name: pair.sums.column(column)[there] for name, column in _OF_PAIR.items()}
        self.groups.add(places[there], {**of_pair, "k1": -of_pair["k1"]})
        start = 0
        for chosen, piece in pieces_of(pair, self.advantages.signs[rows], self.advantages.correct[rows]):
            found, part = self._of_piece(piece), slice(start, start + len(piece.d))
            if updated is not None:
                found |= self._updated(piece, updated[0][part], updated[1][part], pair.q[part])
            self.groups.add(places[chosen], found)
            start = part.stop

    def sequence_logs(self) -> tuple[Float64, Float64]:
        """[R] log of the product, [R] tokens, of all rollouts with a token."""
        if not self._logs:
            return np.zeros(0), np.zeros(0)
        return np.concatenate(self._logs), np.concatenate(self._lengths)

    def _of_piece(self, piece: Piece) -> dict[str, Float64]:
        self.token_weights.add(piece.d)
        self.sequence_weights.add(piece.log_product)
        self._logs.append(piece.log_product)
        self._lengths.append(piece.lengths.astype(np.float64))
        for name, sign in _SIGNS.items():
            self.tokens_by_advantage[name] += int(piece.lengths[piece.signs == sign].sum())
        found = clip_sums(piece, self.clip, rewarded=self.advantages.rewarded) | sequences.sequence_sums(piece)
        for replay in self.replays:
            found |= replay.add(piece)
        return found

    def _updated(self, piece: Piece, current: Float32, known: BoolArray, trainer: Float32) -> dict[str, Float64]:
        moved = np.where(known, np.subtract(current, trainer, dtype=np.float64), 0.0)
        self.updated_tokens += int(np.count_nonzero(known))
        return updated_sums(piece, moved, known, self.clip, rewarded=self.advantages.rewarded)
