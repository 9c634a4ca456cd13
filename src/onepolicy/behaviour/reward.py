"""Is the expected reward the same under both configurations? Paired by prompt, and three answers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from onepolicy.behaviour.completions import Observed, PromptPair
from onepolicy.judgement.statistics import t_quantile
from onepolicy.records.tokens import Float64

ALPHA = 0.05
"""one-sided level of each end of the interval: 90 % between them"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardDifference:
    """B's mean reward minus A's, with the 90 % interval."""

    a: float
    b: float
    low: float
    high: float
    spread: float
    """standard deviation of a prompt's difference"""
    prompts: int
    range: float
    """the largest reward seen minus the smallest; 0 tells nothing apart"""

    @property
    def difference(self) -> float:
        """B minus A: the mean over prompts of the difference of means over samples."""
        return self.b - self.a

    def prompts_needed(self, margin: float) -> float:
        """How many prompts of the same kind would decide; infinite if the difference sits on the margin.

        Source: m = (t s / distance)^2, with the distance from the difference to the nearer end of the margin.
        """
        distance = abs(margin - abs(self.difference))
        if distance == 0 or self.range == 0:
            return math.inf
        return (t_quantile(max(self.prompts - 1, 1), ALPHA) * self.spread / distance) ** 2


def reward_difference(pairs: Sequence[PromptPair]) -> RewardDifference:
    """The difference of expected rewards and its 90 % interval; every completion must have a reward.

    Student's t over the prompts' differences, with two more prompts counted in: one with the largest difference that
    the rewards allow, one with the same the other way. Rare rewards, and prompts that are all equal, would else give an
    interval that is too short or none: a true difference on the margin would pass in up to 14 % of comparisons and not
    in about 5 % (benchmarks/behave.py).
    Two configurations are equivalent if the interval lies within the margin: two one-sided tests, each at 5 %.
    Source: D. Schuirmann (1987); the two counted in as in A. Agresti and B. Caffo (2000).
    """
    a, b = _means([pair.a for pair in pairs]), _means([pair.b for pair in pairs])
    every = [_reward(one) for pair in pairs for one in pair.both]
    span = max(every) - min(every)
    differences = np.append(b - a, [span, -span])
    spread = float(differences.std(ddof=1))
    half = math.inf  # one prompt, or rewards that are all the same, bound nothing
    if len(pairs) > 1 and span > 0:
        half = t_quantile(len(pairs) - 1, ALPHA) * spread / math.sqrt(len(differences))
    middle = float((b - a).mean())
    return RewardDifference(
        a=float(a.mean()),
        b=float(b.mean()),
        low=middle - half,
        high=middle + half,
        spread=spread,
        prompts=len(pairs),
        range=span,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeAgreement:
    """Two rounds of evaluation: how often a prompt ends the same in both. A success has a reward of `success` or more.

    Agreement is over all pairs of a sample of the one and a sample of the other round; prompts count the same. Within a
    round it is what two rounds of that configuration would give; NaN if no prompt has two samples.
    """

    rate_a: float
    rate_b: float
    """share of successes"""
    across: float
    within_a: float
    within_b: float
    turned: tuple[tuple[str, bool], ...]
    """prompts with one outcome in all samples of A and the other in all of B, and whether B succeeds"""


def outcome_agreement(pairs: Sequence[PromptPair], *, success: float) -> OutcomeAgreement:
    """How often both rounds end the same for a prompt; every completion must have a reward."""
    a = [np.array([_reward(one) >= success for one in pair.a], dtype=np.float64) for pair in pairs]
    b = [np.array([_reward(one) >= success for one in pair.b], dtype=np.float64) for pair in pairs]
    rates = [(float(x.mean()), float(y.mean())) for x, y in zip(a, b, strict=True)]
    turned = [(pair.prompt_id, y == 1.0) for pair, (x, y) in zip(pairs, rates, strict=True) if {x, y} == {0.0, 1.0}]
    return OutcomeAgreement(
        rate_a=_mean([x for x, _ in rates]),
        rate_b=_mean([y for _, y in rates]),
        across=_mean([x * y + (1 - x) * (1 - y) for x, y in rates]),
        within_a=_mean([_same_within(one) for one in a if len(one) > 1]),
        within_b=_mean([_same_within(one) for one in b if len(one) > 1]),
        turned=tuple(turned),
    )


def _same_within(outcomes: Float64) -> float:
    """The share of pairs of different samples with the same outcome."""
    n, good = len(outcomes), float(outcomes.sum())
    bad = n - good
    return (good * (good - 1) + bad * (bad - 1)) / (n * (n - 1))


def _means(sides: Sequence[Sequence[Observed]]) -> Float64:
    return np.array([np.mean([_reward(one) for one in side]) for side in sides])


def _reward(one: Observed) -> float:
    assert one.reward is not None, "asked before"
    return one.reward


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else math.nan
