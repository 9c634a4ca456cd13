"""Corrections of the mismatch as training frameworks apply them: a weight for each token, and which are masked.

Written after verl 0.9.1 (`verl/trainer/ppo/rollout_corr_helper.py`) and TRL 1.16.0 (`trl/trainer/grpo_trainer.py`);
tests/real/test_impact_peers.py holds them against those functions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from onepolicy.numerics.impact.piece import NEGATIVE, Piece
from onepolicy.records.tokens import BoolArray, Float64

VERL_BOUND = 20.0
"""nats: verl cuts every log ratio to -20 ... 20 before anything else (SAFETY_BOUND); TRL cuts none"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """An importance weight on the loss of a token."""

    of_sequence: bool = False
    """the product over the rollout at each of its tokens, instead of the token's own ratio"""
    low: float = 0.0
    high: float = math.inf
    masks: bool = False
    """outside low to high the weight is 0 (IcePop, MIS); without, it is cut to the bounds (TIS)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """Tokens or whole rollouts that are left out of the loss where a statistic lies outside bounds."""

    statistic: str
    """token_k1 ... token_k3, or seq_sum_, seq_mean_, seq_max_ of those: verl's names; k1 = -d, k2 = d^2/2,
    k3 = exp(d) - 1 - d"""
    low: float = -math.inf
    """nats"""
    high: float = math.inf
    only_negative: bool = False
    """only rollouts with a negative advantage are left out; of a statistic of sequences"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """A choice, with the option names that stand for it; an empty name: the framework has no such choice."""

    name: str
    label: str
    weight: Weight | None = None
    rejection: Rejection | None = None
    verl: str = ""
    trl: str = ""


def by_ratio(statistic: str, low: float, high: float) -> Rejection:
    """verl's bounds of a k1 statistic, given as ratios: they act on -d, so on the inverse of the importance ratio."""
    return Rejection(statistic=statistic, low=math.log(low), high=math.log(high))


def weights_of(weight: Weight | None, piece: Piece, *, bound: float | None = VERL_BOUND) -> Float64:
    """[M] the factor on the loss of each token; 1 without importance weights. `bound` cuts the log ratio before."""
    if weight is None:
        return np.ones(len(piece.d))
    if not weight.of_sequence:
        return _within(weight, _raw(piece.d, bound))
    of_rollout = _within(weight, _raw(piece.log_product, bound))
    return np.repeat(of_rollout, piece.lengths)


def kept_by(rejection: Rejection | None, piece: Piece, *, bound: float | None = VERL_BOUND) -> BoolArray:
    """[M] the tokens that stay in the loss."""
    if rejection is None:
        return np.ones(len(piece.d), dtype=np.bool_)
    found = statistic_of(rejection.statistic, piece, bound=bound)
    inside: BoolArray = (found >= rejection.low) & (found <= rejection.high)
    if rejection.only_negative:
        inside |= piece.signs != NEGATIVE
    return inside if rejection.statistic.startswith("token_") else np.repeat(inside, piece.lengths)


def statistic_of(name: str, piece: Piece, *, bound: float | None = VERL_BOUND) -> Float64:
    """[M] of a token statistic, [R] of one of sequences."""
    level, _, estimator = name.rpartition("_")
    values = _estimates(estimator, piece.d if bound is None else np.clip(piece.d, -bound, bound))
    if level == "token":
        return values
    if level == "seq_max":
        return piece.largest(values)
    sums = piece.sums(values)
    assert level in ("seq_sum", "seq_mean"), name
    return sums / piece.lengths if level == "seq_mean" else sums


def _estimates(name: str, d: Float64) -> Float64:
    if name == "k1":
        return -d
    if name == "k2":
        return 0.5 * d * d
    assert name == "k3", name
    with np.errstate(over="ignore"):  # without verl's bound the statistic may be infinite, and is beyond any limit
        k3: Float64 = np.expm1(d) - d
    return k3


def _raw(logs: Float64, bound: float | None) -> Float64:
    with np.errstate(over="ignore"):
        raw: Float64 = np.exp(logs if bound is None else np.clip(logs, -bound, bound))
    return raw


def _within(weight: Weight, raw: Float64) -> Float64:
    if not weight.masks:
        return np.clip(raw, weight.low, weight.high)
    return np.where((raw >= weight.low) & (raw <= weight.high), raw, 0.0)
