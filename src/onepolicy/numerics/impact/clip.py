"""PPO's clip on importance ratios that are off before any update.

The gradient of min(r A, clip(r) A) is 0 where A > 0 and r > 1 + epsilon_high, and where A < 0 and r < 1 - epsilon_low.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from onepolicy.numerics.impact.groups import GroupSums
from onepolicy.numerics.impact.piece import NEGATIVE, POSITIVE, Piece, Signs
from onepolicy.records.impact import Clipping, Mean, ShiftedClip, Updated, UpdatedSide
from onepolicy.records.tokens import BoolArray, Float64

MOVES = (0.0, 0.5, 1.5, 2.0)
"""how far an update has moved a token, in multiples of the distance from 1 to the bound; 0 is no update yet"""
SIDES = ("above", "below")
_UPDATED = ("clipped", "wrongly_clipped", "wrongly_let_through")
COLUMNS = (
    *("above", "below", "lost", "with_advantage"),
    *(f"{side}_tokens" for side in SIDES),
    *(f"{side}_moved_{move:g}" for side in SIDES for move in MOVES),
    *(f"{side}_updated_tokens" for side in SIDES),
    *(f"{side}_updated_{what}" for side in SIDES for what in _UPDATED),
)
"""of the group sums"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipRange:
    """1 - low to 1 + high, as PPO's epsilon says it."""

    low: float = 0.2
    high: float = 0.2

    @property
    def log_bounds(self) -> tuple[float, float]:
        """Of log ratios: below, above."""
        return math.log1p(-self.low), math.log1p(self.high)

    def moved_to(self, side: str, move: float) -> float | None:
        """The true ratio of a token that an update has moved by so many epsilons; None if there is no such ratio."""
        ratio = 1 + move * self.high if side == "above" else 1 - move * self.low
        return ratio if ratio > 0 else None


def clip_sums(piece: Piece, clip: ClipRange, *, rewarded: bool) -> dict[str, Float64]:
    """[R] under names of `COLUMNS`: what the clip does to each rollout's tokens before an update and after a move."""
    low, high = clip.log_bounds
    above, below = piece.sums(piece.d > high), piece.sums(piece.d < low)
    positive, negative = on_side(piece.signs, "above", rewarded), on_side(piece.signs, "below", rewarded)
    signed = np.isin(piece.signs, (POSITIVE, NEGATIVE))
    found = {
        "above": above,
        "below": below,
        "lost": np.where(piece.signs == POSITIVE, above, np.where(piece.signs == NEGATIVE, below, 0.0)),
        "with_advantage": signed * piece.lengths.astype(np.float64),
        "above_tokens": positive * piece.lengths.astype(np.float64),
        "below_tokens": negative * piece.lengths.astype(np.float64),
    }
    for move in MOVES:
        found[f"above_moved_{move:g}"] = positive * _misjudged(piece, clip, "above", move)
        found[f"below_moved_{move:g}"] = negative * _misjudged(piece, clip, "below", move)
    return found


def updated_sums(
    piece: Piece, updated: Float64, known: BoolArray, clip: ClipRange, *, rewarded: bool
) -> dict[str, Float64]:
    """[R] under names of `COLUMNS`; updated: [M] log ratio of the updated trainer to the trainer, where known."""
    found: dict[str, Float64] = {}
    for side in SIDES:
        counts = on_side(piece.signs, side, rewarded)
        truly, seen = _beyond(updated, clip, side) & known, _beyond(updated + piece.d, clip, side) & known
        found[f"{side}_updated_tokens"] = counts * piece.sums(known)
        found[f"{side}_updated_clipped"] = counts * piece.sums(truly)
        found[f"{side}_updated_wrongly_clipped"] = counts * piece.sums(seen & ~truly)
        found[f"{side}_updated_wrongly_let_through"] = counts * piece.sums(truly & ~seen)
    return found


def clipping_of(
    groups: GroupSums, clip: ClipRange, *, rewarded: bool, tokens_by_advantage: dict[str, int]
) -> Clipping | None:
    """The sums as shares; None if nothing was compared."""
    above, below = groups.mean("above", per="tokens"), groups.mean("below", per="tokens")
    if above is None or below is None:
        return None
    return Clipping(
        epsilon_low=clip.low,
        epsilon_high=clip.high,
        above=above,
        below=below,
        lost=groups.mean("lost", per="with_advantage") if rewarded else None,
        tokens_by_advantage=tokens_by_advantage,
        shifted=tuple(one for side in SIDES for move in MOVES if (one := _shifted(groups, clip, side, move))),
    )


def updated_of(groups: GroupSums, reading: str, tokens: int) -> Updated:
    """The sums under a reading of the updated policy as shares; a side without a token is left out."""
    sides = []
    for side in SIDES:
        shares = {what: _share(groups, f"{side}_updated_{what}", f"{side}_updated_tokens") for what in _UPDATED}
        known = {what: share for what, share in shares.items() if share is not None}
        if len(known) == len(shares):
            sides.append(UpdatedSide(is_above=side == "above", **known))
    return Updated(reading=reading, tokens=tokens, sides=tuple(sides))


def on_side(signs: Signs, side: str, rewarded: bool) -> BoolArray:
    """[R] the rollouts on which a bound acts: those with the sign of its advantage; without rewards all."""
    if not rewarded:
        return np.ones(len(signs), dtype=np.bool_)
    chosen: BoolArray = signs == (POSITIVE if side == "above" else NEGATIVE)
    return chosen


def _misjudged(piece: Piece, clip: ClipRange, side: str, move: float) -> Float64:
    """[R] tokens that the clip treats otherwise than their true ratio says, each moved by so many epsilons."""
    ratio = clip.moved_to(side, move)
    if ratio is None:
        return np.zeros(len(piece.lengths))
    seen = piece.sums(_beyond(piece.d + math.log(ratio), clip, side))
    return piece.lengths - seen if move > 1 else seen


def _beyond(logs: Float64, clip: ClipRange, side: str) -> BoolArray:
    low, high = clip.log_bounds
    found: BoolArray = logs > high if side == "above" else logs < low
    return found


def _shifted(groups: GroupSums, clip: ClipRange, side: str, move: float) -> ShiftedClip | None:
    ratio, share = clip.moved_to(side, move), _share(groups, f"{side}_moved_{move:g}", f"{side}_tokens")
    if ratio is None or share is None:
        return None
    return ShiftedClip(true_ratio=ratio, is_above=side == "above", is_let_through=move > 1, share=share)


def _share(groups: GroupSums, name: str, per: str) -> Mean | None:
    return groups.mean(name, per=per)
