"""Two causes at once: tried only where the best single one leaves more than the noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from onepolicy.diagnosis.cause import Cause, Situation
from onepolicy.diagnosis.decide import MOST_RESIDUAL, remedy_of
from onepolicy.diagnosis.likelihood import Family, Trial, Tried
from onepolicy.records.tokens import Float64

_TRIED = 6
"""of the best single ones that are joined with each other"""


def with_pairs(
    trial: Trial, tried: Sequence[Tried], causes: Mapping[str, Cause]
) -> tuple[list[Tried], dict[str, Cause]]:
    """The same with pairs of the best, and the causes with a name for each pair.

    A pair's correction is the sum of both, as if neither changed what the other does; the value of each is fitted once
    more under that of the other.
    """
    ranked = sorted((one for one in tried if one.gain > 0), key=lambda one: -one.gain)[:_TRIED]
    if len(ranked) < 2 or _residual(trial, ranked[0]) <= MOST_RESIDUAL:
        return list(tried), dict(causes)
    first, pairs, named = ranked[0], [], dict(causes)
    for other in ranked[1:]:
        if other.family.cause != first.family.cause:
            cause = _both(causes[first.family.cause], causes[other.family.cause], first, other)
            pairs.append(_joint(trial, first, other, name=cause.name))
            named[cause.name] = cause
    return [*tried, *pairs], named


def _joint(trial: Trial, first: Tried, other: Tried, *, name: str) -> Tried:
    """Both corrections, each fitted under the other.

    The first one's value is fitted on all prompts, so it has seen the held-out ones too; the penalty counts both.
    """
    second = trial.of(_on_top(trial, other.family, first.family, first.value))
    again = trial.of(_on_top(trial, first.family, other.family, second.value))
    both = replace(_on_top(trial, other.family, first.family, again.value), remedy=None)
    named = f"{first.family.label(again.value)} and "
    return trial.of(replace(both, cause=name, parameters=2, label=lambda value: named + other.family.label(value)))


def _on_top(trial: Trial, family: Family, fixed: Family, value: float) -> Family:
    """The family's corrections with that of another one under a value beside them."""
    change: Float64 = trial.corrected(fixed, value) - trial.tokens.d
    return replace(
        family,
        corrected=lambda one: trial.corrected(family, one) + change,
        scale=lambda one, noise: family.scale(one, fixed.scale(value, noise)),
    )


def _both(first: Cause, other: Cause, one: Tried, two: Tried) -> Cause:
    def remedy(situation: Situation, value: float) -> str:
        return f"{remedy_of(one, first, situation)}; and {remedy_of(replace(two, value=value), other, situation)}"

    return Cause(
        name=f"{first.name} and {other.name}",
        about="two causes at once",
        remedy=remedy,
        is_broad=first.is_broad or other.is_broad,
    )


def _residual(trial: Trial, one: Tried) -> float:
    return float(trial.clipped(one.after).sum() / one.noise)
