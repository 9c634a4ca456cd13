"""How well a correction explains d on prompts that it was not fitted on.

d is taken as Student-t with 4 degrees of freedom, with the noise as its scale. Not the share of mean d² that a
correction removes: a stale step looks like a temperature of 1.02 and "explains" two fifths of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize_scalar

from onepolicy.diagnosis.noise import CLIP, Noise
from onepolicy.diagnosis.tokens import Index, Tokens
from onepolicy.records.tokens import Float64

FOLDS = 5
IMPOSSIBLE = 20.0
"""nats: what a token counts as that a correction makes impossible"""
_CONSTANT = math.log(3 / 8)
_TOLERANCE = 1e-3
"""of the distance between the neighbours of the best value of a grid"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One cause as corrections with a parameter; a cause without one has a single value.

    `corrected(value)` gives d as it would be without the fault: [M], -inf where the token could not have been sampled,
    NaN where the correction says nothing, so that the token's d stays as it is. It must not look at d to choose
    anything.
    """

    cause: str
    values: tuple[float, ...]
    corrected: Callable[[float], Float64]
    label: Callable[[float], str]
    is_continuous: bool = False
    """whether values between two of `values` make sense"""
    remedy: Callable[[float], str] | None = None
    """what to change under a value, where it is another thing than what the cause itself says"""
    experiment: str = ""
    """what was run for it; empty if the data alone were enough"""
    seen: str = ""
    parameters: int = 1
    """that are fitted where there are several values"""
    settles: bool = True
    """whether the cause is ruled out where this gains nothing; not where it is but one of its forms"""
    scale: Callable[[float, Float64], Float64] = lambda value, noise: noise
    """a value, [M] the noise -> [M] what is left of it after the correction, in nats: logits divided by T have 1/T
    times as much, and a correction that is no exact one adds what it may be wrong by"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tried:
    """A family, held against the tokens."""

    family: Family
    value: float
    value_error: float | None
    stability: float | None
    gains: Float64
    """[P] held-out gain of each prompt, summed over its tokens"""
    weights: Float64
    """[P] tokens of each prompt"""
    penalty: float
    """nats per token"""
    after: Float64
    """[M] d under the value that was fitted on all"""
    noise: float
    """nats, all tokens together: the mean |d| that noise leaves under that value, |d| cut at `CLIP`"""
    impossible: float

    @property
    def gain(self) -> float:
        """Per token, penalties taken off."""
        return float(self.gains.sum() / self.weights.sum()) - self.penalty

    @property
    def gain_error(self) -> float:
        """Standard error of the ratio over prompts."""
        return ratio_error(self.gains, self.weights)

    @property
    def z(self) -> float:
        """The gain in standard errors; 0 without a gain."""
        return self.gain / self.gain_error if self.gain_error > 0 else (math.inf if self.gain > 0 else 0.0)


class Trial:
    """Tries families on one set of tokens."""

    def __init__(self, tokens: Tokens, noise: Noise, *, candidates: int = 1) -> None:
        self.tokens = tokens
        self.scale = noise.scale(tokens.p)
        self._prompt: Index = tokens.prompt
        self._prompts = int(self._prompt.max()) + 1 if len(tokens) else 0
        self.weights = np.bincount(self._prompt, minlength=self._prompts).astype(np.float64)
        self._fold = np.arange(self._prompts) % FOLDS
        self._before = self.by_prompt(tokens.d)
        self._candidates = candidates

    def by_prompt(self, d: Float64, scale: Float64 | None = None) -> Float64:
        """[M] -> [P] log-likelihood of each prompt. scale: [M], the noise if not given."""
        return self._summed(log_density(d, self.scale if scale is None else scale))

    def clipped(self, d: Float64) -> Float64:
        """[M] -> [P] sums of |d|, cut at `CLIP`."""
        return self._summed(np.minimum(np.abs(possible(d)), CLIP))

    def expected(self) -> Float64:
        """[P] sums of what the noise alone would give."""
        return self._summed(np.minimum(self.scale, CLIP))

    def worst_prompts(self, count: int = 3) -> list[str]:
        """The prompt groups with most of the difference."""
        names = list(dict.fromkeys(self.tokens.prompt_ids))
        order = np.argsort(-self.clipped(self.tokens.d), kind="stable")[:count]
        return [names[at] for at in order.tolist()]

    def corrected(self, family: Family, value: float) -> Float64:
        """[M] d under a value; as it is where the family says nothing."""
        after = family.corrected(value)
        return np.where(np.isnan(after), self.tokens.d, after)

    def _summed(self, values: Float64) -> Float64:
        sums: Float64 = np.bincount(self._prompt, weights=values, minlength=self._prompts).astype(np.float64)
        return sums

    def of(self, family: Family) -> Tried:
        """The family's held-out gain, and its best value on all tokens."""
        known: dict[float, Float64] = {}

        def score(value: float) -> Float64:
            if value not in known:
                known[value] = self.by_prompt(self.corrected(family, value), family.scale(value, self.scale))
            return known[value]

        gains, chosen = np.zeros(self._prompts), []
        for fold in range(FOLDS):
            held = self._fold == fold
            if not held.any():
                continue
            value = _best(family, lambda one, held=held: float(score(one)[~held].sum()))  # type: ignore[misc]
            gains[held] = score(value)[held] - self._before[held]
            chosen.append(value)
        value = _best(family, lambda one: float(score(one).sum()))
        after = self.corrected(family, value)
        return Tried(
            family=family,
            value=value,
            value_error=_error(family, score, value),
            stability=float(np.std(chosen)) if len(family.values) > 1 else None,
            gains=gains,
            weights=self.weights,
            penalty=self._penalty(family),
            after=after,
            noise=float(np.minimum(family.scale(value, self.scale), CLIP).sum()),
            impossible=float(np.mean(~np.isfinite(after))) if len(after) else 0.0,
        )

    def _penalty(self, family: Family) -> float:
        """Half a log of the tokens for a parameter, and the log of how many candidates were scanned."""
        tokens = max(len(self.tokens), 2)
        parameters = family.parameters if len(family.values) > 1 else 0
        return (0.5 * parameters * math.log(tokens) + math.log(max(self._candidates, 1))) / tokens


def possible(d: Float64) -> Float64:
    """[M] the same, with `IMPOSSIBLE` where the token could not have been sampled."""
    return np.where(np.isfinite(d), d, IMPOSSIBLE)


def log_density(d: Float64, scale: Float64) -> Float64:
    """[M] log of the Student-t density with 4 degrees of freedom: 3/8 / s · (1 + (d/s)²/4)^(-5/2)."""
    ratio = possible(d) / scale
    density: Float64 = _CONSTANT - np.log(scale) - 2.5 * np.log1p(0.25 * ratio * ratio)
    return density


def ratio_error(sums: Float64, weights: Float64) -> float:
    """Standard error of sum(sums) / sum(weights) over independent prompts; infinite for fewer than two."""
    count = int(np.count_nonzero(weights))
    if count < 2:
        return math.inf
    ratio = sums.sum() / weights.sum()
    residual = sums - ratio * weights
    return float(math.sqrt(count / (count - 1) * np.square(residual).sum()) / weights.sum())


def _best(family: Family, score: Callable[[float], float]) -> float:
    best = max(family.values, key=score)
    if not family.is_continuous or len(family.values) < 2:
        return best
    at = family.values.index(best)
    bounds = family.values[max(at - 1, 0)], family.values[min(at + 1, len(family.values) - 1)]
    tolerance = _TOLERANCE * (bounds[1] - bounds[0])
    found = minimize_scalar(lambda one: -score(one), bounds=bounds, method="bounded", options={"xatol": tolerance})
    return float(found.x)


def _error(family: Family, score: Callable[[float], Float64], value: float) -> float | None:
    """Sandwich error of a continuous parameter, from differences of each prompt's log-likelihood; None otherwise."""
    if not family.is_continuous:
        return None
    step = 1e-3 * max(abs(value), 1e-3)
    low, here, high = score(value - step), score(value), score(value + step)
    slope, curve = (high - low) / (2 * step), float((high - 2 * here + low).sum()) / step**2
    return float(math.sqrt(np.square(slope).sum()) / -curve) if curve < 0 else None
