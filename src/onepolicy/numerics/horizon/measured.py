"""Sums over a run -> everything that is said about its horizon, before it is judged."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from onepolicy.judgement.limits import MIN_CLUSTERS
from onepolicy.numerics.horizon.components import components
from onepolicy.numerics.horizon.drift import drift
from onepolicy.numerics.horizon.extrapolate import MOST_TIMES, extrapolate
from onepolicy.numerics.horizon.position import by_position, growth
from onepolicy.numerics.horizon.result import Components, Drift, Extrapolation, Growth, PositionBucket
from onepolicy.numerics.horizon.sums import BLOCK, GROUP_SUMS, HorizonSums

MIN_PROMPTS = 24
"""with fewer prompt groups the bootstrap's interval holds the truth too seldom (benchmarks/horizon.py)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What is known of a horizon; None where it cannot be."""

    tokens: int
    """the horizon"""
    band: tuple[float, float]
    groups: int
    length: int
    """the measured one, of the cohort"""
    counts: dict[str, int]
    drift: Drift | None = None
    bias: Components | None = None
    spread: Components | None = None
    extrapolation: Extrapolation | None = None
    refused: str = ""
    at_measured: Extrapolation | None = None
    observed_outside: float | None = None
    growth: Growth | None = None
    positions: tuple[PositionBucket, ...] = ()


def measured_horizon(sums: HorizonSums, *, tokens: int | None, band: tuple[float, float], is_kl: bool) -> Measured:
    """Everything about a horizon of `tokens` tokens; without it that of the measured length.

    is_kl: whether the tokens were sampled from the distribution that the rollout logprobs belong to. Without it -KL is
    the mean of nothing, and only the error by position is left.
    """
    groups, length = sums.groups, sums.cohort.length
    known = Measured(
        tokens=tokens or length,
        band=band,
        groups=len(groups),
        length=length,
        counts=_counts(sums),
        positions=by_position(sums),
        growth=growth(sums.positions),
        observed_outside=sums.cohort_outside / sums.cohort_rollouts if sums.cohort_rollouts else None,
    )
    finite = bool(np.isfinite(groups).all())
    known = replace(known, refused=_refusal(known, is_kl=is_kl, finite=finite))
    if not is_kl or not finite or len(groups) < MIN_CLUSTERS:
        return known
    missing = 1 - float(groups[:, GROUP_SUMS.index("tokens")].sum()) / sums.wanted
    known = replace(
        known,
        drift=drift(groups, missing=missing),
        bias=components(groups, "excess"),
        spread=components(groups, "d"),
    )
    if known.refused or known.spread is None:
        return known
    there = extrapolate(groups, length, band)
    wanted = there if known.tokens == length else extrapolate(groups, known.tokens, band)
    return replace(known, extrapolation=wanted, at_measured=there)


def _refusal(known: Measured, *, is_kl: bool, finite: bool) -> str:
    """Why nothing is said of the horizon; empty if it can be."""
    groups, length, tokens = known.groups, known.length, known.tokens
    if not is_kl:
        return (
            "the tokens are no sample of the distribution that the rollout logprobs belong to, so -KL is not what "
            "their d averages to. Record fresh rollouts whose logprobs are of what was sampled from"
        )
    if not finite:
        return "an importance ratio is beyond what a number can hold"
    if groups < MIN_PROMPTS:
        return f"{groups} prompts are too few for an interval, {MIN_PROMPTS} are needed. Record more prompts"
    if length < 2 * BLOCK:
        return (
            f"half of the prompts have no rollout of {2 * BLOCK} tokens, which tell what is persistent from what is "
            "not. Record with a larger --max-new-tokens"
        )
    if tokens > MOST_TIMES * length:
        needed = math.ceil(tokens / MOST_TIMES)
        return (
            f"{tokens:,} tokens are more than {MOST_TIMES} times the measured length of {length:,}. Record rollouts of "
            f"{needed:,} tokens or more, or ask for {MOST_TIMES * length:,}"
        )
    return ""


def _counts(sums: HorizonSums) -> dict[str, int]:
    total = dict(zip(GROUP_SUMS, sums.groups.sum(axis=0).tolist(), strict=True))
    return {
        "rollouts": int(total["rollouts"]),
        "prompt_groups": len(sums.groups),
        "tokens_to_compare": sums.wanted,
        "tokens_compared": int(total["tokens"]),
        "tokens_in_blocks": int(total["blocks"]) * BLOCK,
        "cohort_rollouts": sums.cohort_rollouts,
        "cohort_prompts": int(np.count_nonzero(sums.positions[:, :, 0].sum(axis=1))),
    }
