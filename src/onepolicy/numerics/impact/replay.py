"""Corrections replayed on recorded tokens, as sums."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from onepolicy.numerics.impact.corrections import Correction, kept_by, weights_of
from onepolicy.numerics.impact.groups import GroupSums
from onepolicy.numerics.impact.piece import Piece
from onepolicy.records.impact import Replayed
from onepolicy.records.tokens import BoolArray, Float64


@dataclass(slots=True, kw_only=True, eq=False)
class Replay:
    """One correction, and what it did so far."""

    correction: Correction
    tokens: int = 0
    tokens_kept: int = 0
    weights: float = 0.0
    squares: float = 0.0
    token_distance: float = 0.0
    sequence_distance: float = 0.0
    cut: int = 0
    rollouts: int = 0
    rollouts_kept: int = 0
    rollouts_whole: int = 0
    correct: int = 0
    correct_kept: int = 0
    correct_tokens: int = 0
    correct_tokens_kept: int = 0
    columns: tuple[str, str] = field(init=False)
    """of the group sums: tokens kept, weights"""

    def __post_init__(self) -> None:
        self.columns = columns_of(self.correction)

    def add(self, piece: Piece) -> dict[str, Float64]:
        """Take in rollouts; returns [R] under the names of `columns`."""
        weights = weights_of(self.correction.weight, piece)
        kept = kept_by(self.correction.rejection, piece) & (weights > 0)
        self._count_cut(piece, weights, kept)
        weights *= kept
        of_rollout = piece.sums(kept)
        self._count_rollouts(piece, of_rollout)
        summed = piece.sums(weights)
        self.tokens += len(weights)
        self.tokens_kept += int(of_rollout.sum())
        self.weights += float(summed.sum())
        self.squares += float(np.einsum("i,i->", weights, weights))
        self.token_distance += float(np.abs(weights - piece.ratio).sum())
        self.sequence_distance += float(np.abs(weights - piece.sequence_ratio).sum())
        return dict(zip(self.columns, (of_rollout, summed), strict=True))

    def result(self, groups: GroupSums, *, rewarded: bool) -> Replayed | None:
        """The sums as shares and means; None if nothing was compared."""
        kept, weight = (groups.mean(name, per="tokens") for name in self.columns)
        if kept is None or weight is None:
            return None
        mean, n = self.weights / self.tokens, self.tokens
        return Replayed(
            name=self.correction.name,
            label=self.correction.label,
            verl=self.correction.verl,
            trl=self.correction.trl,
            kept=kept,
            cut=self.cut / n,
            rollouts_kept=self.rollouts_kept / self.rollouts,
            rollouts_whole=self.rollouts_whole / self.rollouts,
            effective_share=self.weights**2 / (n * self.squares) if self.squares > 0 else None,
            mean_weight=weight,
            variance=self.squares / n - mean * mean,
            token_distance=self.token_distance / n,
            sequence_distance=self.sequence_distance / n,
            correct_lost=self.correct - self.correct_kept if rewarded else None,
            correct_tokens_lost=1 - self.correct_tokens_kept / self.correct_tokens if self.correct_tokens else None,
        )

    def _count_cut(self, piece: Piece, weights: Float64, kept: BoolArray) -> None:
        weight = self.correction.weight
        if weight is None or weight.masks:
            return
        exact = piece.sequence_ratio if weight.of_sequence else piece.ratio
        self.cut += int(np.count_nonzero(((exact > weight.high) | (exact < weight.low)) & kept))

    def _count_rollouts(self, piece: Piece, kept: Float64) -> None:
        correct = piece.correct
        self.rollouts += len(kept)
        self.rollouts_kept += int(np.count_nonzero(kept))
        self.rollouts_whole += int(np.count_nonzero(kept == piece.lengths))
        self.correct += int(np.count_nonzero(correct))
        self.correct_kept += int(np.count_nonzero(kept[correct]))
        self.correct_tokens += int(piece.lengths[correct].sum())
        self.correct_tokens_kept += int(kept[correct].sum())


def columns_of(correction: Correction) -> tuple[str, str]:
    """Names of a correction's group sums."""
    return f"{correction.name}_kept", f"{correction.name}_weight"
