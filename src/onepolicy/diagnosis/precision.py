"""Whether two sides differ by no more than what one of them moves by itself: precision, or a side that never repeats.

Such a cause has a size and no direction, so no correction removes it. It is shown by a second reading of one side,
in the other precision or under nothing changed at all: that reading must move as far as the sides are apart, at each
confidence, and d must have no other structure than the movement has.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from onepolicy.diagnosis.likelihood import Trial, log_density, ratio_error
from onepolicy.diagnosis.noise import CLIP, noise_of_readings
from onepolicy.diagnosis.tokens import Tokens
from onepolicy.numerics.buckets import CONFIDENCE_EDGES
from onepolicy.records.finding import Finding, Outcome
from onepolicy.records.tokens import Float64

MOST_RATIO = 1.5
"""times as far as it moves that the sides may be apart; two sides that move independently are sqrt 2 apart"""
MOST_RATIO_OF_BUCKET = 2.0
"""the same in one bucket of confidence"""
FEWEST_IN_BUCKET = 100
"""tokens; the mean of fewer varies by more than a tenth"""
Z = 3.0
"""standard errors that the mean importance ratio may be from 1"""
MOST_GROWTH = 1.5
"""times by which d may grow along a sequence beyond what the movement does"""
MOST_CORRELATION = 0.2
"""of neighbouring tokens, beyond that of the movement"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reread:
    """A second reading of a side, and what it stands for."""

    cause: str
    label: str
    """bfloat16 on one side and float32 on the other"""
    experiment: str
    """what was done: the trainer read again in bfloat16"""
    remedy: str
    moved: Float64
    """[M] how far each logprob moved, nats"""
    is_declared: bool = True
    """whether a side says that it is so; else the sides must be as far apart as that, not only no further"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """How d compares with the movement."""

    ratio: float
    """mean |d| over mean |moved|, both cut at `CLIP`"""
    worst: float
    """the same in the bucket where it is largest"""
    mean_ratio: float
    """mean importance ratio; 1 for any two distributions, if the rollout side sampled the tokens"""
    mean_ratio_z: float
    growth: float
    """size of d late in the sequences over early, by the same of the movement"""
    correlation: float
    """of neighbouring tokens' d, minus that of the movement"""

    @property
    def has_structure(self) -> bool:
        """Whether d is more than noise, whatever its size."""
        return (
            abs(self.mean_ratio_z) > Z
            or self.growth > MOST_GROWTH
            or abs(self.correlation) > MOST_CORRELATION
            or not math.isfinite(self.ratio)
        )

    @property
    def is_as_far(self) -> bool:
        """Whether the movement reaches as far as the sides are apart, at every confidence."""
        return self.ratio <= MOST_RATIO and self.worst <= MOST_RATIO_OF_BUCKET


def finding_of(trial: Trial, again: Reread, *, is_sampled: bool) -> Finding:
    """What the second reading says. Its gain is that of its scale over the noise's: no parameter, nothing fitted to d.

    is_sampled: whether the rollout side drew the tokens, so that the mean importance ratio must be 1.
    """
    tokens = trial.tokens
    scale = noise_of_readings(tokens.p, again.moved, source=again.experiment).scale(tokens.p)
    prompt, prompts = tokens.prompt, len(trial.weights)
    better = log_density(tokens.d, scale) - log_density(tokens.d, trial.scale)
    gains: Float64 = np.bincount(prompt, weights=better, minlength=prompts).astype(np.float64)
    found = evidence_of(tokens, again.moved, is_sampled=is_sampled)
    error = ratio_error(gains, trial.weights)
    return Finding(
        cause=again.cause,
        outcome=_outcome(found, again),
        label=again.label,
        tokens=len(tokens),
        gain=float(gains.sum() / trial.weights.sum()),
        gain_error=error if math.isfinite(error) else None,
        residual=found.ratio if math.isfinite(found.ratio) else None,
        experiment=again.experiment,
        seen=_seen(found, again, tokens, is_sampled=is_sampled),
        remedy=again.remedy,
    )


def _outcome(found: Evidence, again: Reread) -> Outcome:
    is_less = not again.is_declared and found.ratio < 1 / MOST_RATIO
    if found.has_structure or found.ratio > 2 * MOST_RATIO or is_less:
        return Outcome.RULED_OUT
    return Outcome.CAUSE if found.is_as_far else Outcome.PARTLY


def evidence_of(tokens: Tokens, moved: Float64, *, is_sampled: bool) -> Evidence:
    """d beside the movement [M]."""
    size, reach = (np.minimum(np.abs(values), CLIP) for values in (tokens.d, moved))
    ratio, z = _mean_ratio(tokens) if is_sampled else (1.0, 0.0)
    grown, grown_itself = _growth(tokens, size), _growth(tokens, reach)
    return Evidence(
        ratio=_divided(float(size.mean()), float(reach.mean())),
        worst=_worst_bucket(tokens.p, size, reach),
        mean_ratio=ratio,
        mean_ratio_z=z,
        growth=_divided(grown, grown_itself),
        correlation=_of_neighbours(tokens, tokens.d) - _of_neighbours(tokens, moved),
    )


def _mean_ratio(tokens: Tokens) -> tuple[float, float]:
    """Mean of e^d, and how many standard errors over prompts it is from 1."""
    prompt = tokens.prompt
    count = int(prompt.max()) + 1
    weights = np.bincount(prompt, minlength=count).astype(np.float64)
    sums: Float64 = np.bincount(prompt, weights=np.exp(tokens.d), minlength=count).astype(np.float64)
    mean, error = float(sums.sum() / weights.sum()), ratio_error(sums, weights)
    return mean, (mean - 1.0) / error if error > 0 and math.isfinite(error) else 0.0


def _worst_bucket(p: Float64, size: Float64, reach: Float64) -> float:
    bucket = np.searchsorted(CONFIDENCE_EDGES, np.exp(np.minimum(p, 0.0)), side="right") - 1
    bucket = np.clip(bucket, 0, len(CONFIDENCE_EDGES) - 2)
    counts = np.bincount(bucket)
    sums, reached = np.bincount(bucket, weights=size), np.bincount(bucket, weights=reach)
    enough = counts >= FEWEST_IN_BUCKET
    ratios = [_divided(a, b) for a, b in zip(sums[enough].tolist(), reached[enough].tolist(), strict=True)]
    return max(ratios, default=_divided(float(size.sum()), float(reach.sum())))


def _growth(tokens: Tokens, size: Float64) -> float:
    """Mean size in the last third of the positions over that in the first."""
    low, high = np.quantile(tokens.position, (1 / 3, 2 / 3))
    early, late = size[tokens.position <= low], size[tokens.position > high]
    return _divided(float(late.mean()), float(early.mean())) if len(early) and len(late) else 1.0


def _of_neighbours(tokens: Tokens, values: Float64) -> float:
    """Correlation of each token's value with the next one's in its rollout; cut at `CLIP`, so that no token rules."""
    cut = np.clip(values, -CLIP, CLIP)
    pairs = tokens.rollout[1:] == tokens.rollout[:-1]
    first, second = cut[:-1][pairs], cut[1:][pairs]
    if len(first) < 2 or not first.std() or not second.std():
        return 0.0
    return float(np.corrcoef(first, second)[0, 1])


def _divided(a: float, b: float) -> float:
    """0 for 0 by 0: sides that agree and a reading that does not move."""
    return a / b if b > 0 else (math.inf if a > 0 else 0.0)


def _seen(found: Evidence, again: Reread, tokens: Tokens, *, is_sampled: bool) -> str:
    reach = float(np.minimum(np.abs(again.moved), CLIP).mean())
    text = (
        f"the {again.experiment} moves by {reach:.2g} nats, the sides are {found.ratio:.2g} times as far apart "
        f"(at most {found.worst:.2g} times at one confidence)"
    )
    if is_sampled:
        text += f"; the mean importance ratio is {found.mean_ratio:.4f} ({found.mean_ratio_z:+.1f} standard errors)"
    return text


def settled(findings: list[Finding], own: Finding) -> list[Finding]:
    """The findings with that of a second reading among them.

    A correction that explains d keeps its place, and rules this one out: a size says less than a direction. Where
    none does, this one is the answer, and parts that corrections explain are ruled out.
    """
    explained = any(one.outcome is Outcome.CAUSE for one in findings)
    if explained or own.outcome is not Outcome.CAUSE:
        ruled_out = own.model_copy(update={"outcome": Outcome.RULED_OUT}) if explained else own
        return [*findings, ruled_out]
    kept = [one.model_copy(update={"outcome": Outcome.RULED_OUT}) if _is_weaker(one, own) else one for one in findings]
    return [own, *kept]


def _is_weaker(one: Finding, own: Finding) -> bool:
    """Of another cause that explains a part, or one that gains less than the measured scale does."""
    return one.outcome is Outcome.PARTLY or (one.outcome is Outcome.ONE_OF and (one.gain or 0.0) <= (own.gain or 0.0))
