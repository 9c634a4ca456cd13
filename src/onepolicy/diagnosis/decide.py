"""From trials to an answer: the cause, a part of it, one of several, or none that is known."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from onepolicy.diagnosis.cause import Cause, Situation
from onepolicy.diagnosis.likelihood import Trial, Tried, ratio_error
from onepolicy.records.finding import Finding, Outcome

MOST_RESIDUAL = 1.5
"""times the noise that a cause may leave"""
ALPHA = 0.05
LEAST_WHOLE = 0.5
"""share of the excess that a cause explains at least"""
MOST_STRETCH = 3.0
"""times the noise that may be left under a correction that stretches it: logits divided by 0.48 have twice as much"""
MOST_INEXACT = 0.1
"""share of the difference that a correction may leave which is no exact one"""
LEAST_PART = 0.2
"""share of the excess that a part of the answer explains at least; a wrong direction nearly always gains a little"""
BETTER = 1.96
"""standard errors by which the best must beat the next, paired over prompts"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Excess:
    """How far the sides are apart beyond noise; nats, |d| cut at 1."""

    mean: float
    noise: float
    error: float

    @property
    def is_there(self) -> bool:
        """Whether there is anything to explain."""
        return self.mean > MOST_RESIDUAL * self.noise

    @property
    def is_of_few(self) -> bool:
        """Whether it comes from so few prompts that others may well have none."""
        return self.is_there and self.mean - self.noise <= BETTER * self.error


def excess_of(trial: Trial) -> Excess:
    """Of the tokens as they are."""
    sums, expected, weights = trial.clipped(trial.tokens.d), trial.expected(), trial.weights
    total = max(float(weights.sum()), 1.0)
    return Excess(
        mean=float(sums.sum()) / total, noise=float(expected.sum()) / total, error=ratio_error(sums - expected, weights)
    )


def findings_of(
    trial: Trial, tried: Sequence[Tried], causes: Mapping[str, Cause], situation: Situation
) -> list[Finding]:
    """One finding for each cause that was tried: its best family. The best first."""
    ranked = sorted(_best_of_each(tried), key=lambda one: -one.gain)
    significant = _significant(ranked)
    numbers = {one.family.cause: _numbers(trial, one, causes[one.family.cause], situation) for one in ranked}
    noise = float(trial.expected().sum() / trial.weights.sum())
    whole = {name for name in significant if _is_whole(numbers[name], noise)}
    best = _as_good_as_the_best([one for one in ranked if one.family.cause in whole])
    best = {name for name in best if not causes[name].is_broad} or best
    parts = {name for name in significant if (numbers[name].explained or 0.0) >= LEAST_PART}
    outcomes = {name: _outcome(name, parts, best) for name in numbers}
    settled = {one.family.cause for one in tried if one.family.settles}
    findings = _kept([one.model_copy(update={"outcome": outcomes[name]}) for name, one in numbers.items()])
    return [one if one.cause in settled else _open(one, causes[one.cause]) for one in findings]


def _open(finding: Finding, cause: Cause) -> Finding:
    """What was tried of a cause is not all of it: if that gained nothing, the cause was not tested."""
    if finding.outcome is not Outcome.RULED_OUT:
        return finding
    return Finding(cause=cause.name, outcome=Outcome.UNTESTED, seen=cause.needs)


def _best_of_each(tried: Sequence[Tried]) -> list[Tried]:
    best: dict[str, Tried] = {}
    for one in tried:
        known = best.get(one.family.cause)
        if known is None or one.gain > known.gain:
            best[one.family.cause] = one
    return list(best.values())


def _significant(tried: Sequence[Tried]) -> set[str]:
    """Causes whose gain is above 0, by Holm over all that were tried."""
    found: set[str] = set()
    ordered = sorted(tried, key=lambda one: -one.z)
    for number, one in enumerate(ordered):
        if one.gain <= 0 or _upper_tail(one.z) > ALPHA / (len(ordered) - number):
            break
        found.add(one.family.cause)
    return found


def _as_good_as_the_best(ranked: Sequence[Tried]) -> set[str]:
    """The best cause, and those that it does not beat, paired over prompts."""
    found: set[str] = set()
    for other in ranked:
        difference = ranked[0].gains - other.gains
        error = ratio_error(difference, other.weights)
        if other is ranked[0] or float(difference.sum() / other.weights.sum()) <= BETTER * error:
            found.add(other.family.cause)
    return found


def _numbers(trial: Trial, one: Tried, cause: Cause, situation: Situation) -> Finding:
    total = float(trial.weights.sum())
    before, after = (float(trial.clipped(d).sum()) / total for d in (trial.tokens.d, one.after))
    noise = one.noise / total
    return Finding(
        cause=cause.name,
        outcome=Outcome.RULED_OUT,
        label=one.family.label(one.value),
        value=one.value if len(one.family.values) > 1 else None,
        value_error=one.value_error,
        stability=one.stability,
        tokens=len(trial.tokens),
        gain=one.gain,
        gain_error=one.gain_error if math.isfinite(one.gain_error) else None,
        explained=(before - after) / (before - noise) if before > noise else None,
        residual=after / noise,
        mean_abs_d_before=before,
        mean_abs_d=after,
        impossible=one.impossible,
        experiment=one.family.experiment,
        seen=one.family.seen,
        remedy=remedy_of(one, cause, situation),
    )


def remedy_of(one: Tried, cause: Cause, situation: Situation) -> str:
    """What to change."""
    own = one.family.remedy
    return cause.remedy(situation, one.value) if own is None else own(one.value)


def _is_whole(finding: Finding, noise: float) -> bool:
    """Down to the noise, and by its own doing: an excess just above the noise is soon below it.

    A correction that is no exact one may leave more than noise, but little of what there was.
    """
    after, before = finding.mean_abs_d or 0.0, finding.mean_abs_d_before or 0.0
    is_exact = after <= MOST_STRETCH * noise or after <= MOST_INEXACT * before
    return is_exact and (finding.residual or 0.0) <= MOST_RESIDUAL and (finding.explained or 0.0) >= LEAST_WHOLE


def _outcome(name: str, parts: set[str], best: set[str]) -> Outcome:
    if name in best:
        return Outcome.CAUSE if len(best) == 1 else Outcome.ONE_OF
    return Outcome.PARTLY if name in parts else Outcome.RULED_OUT


def explains(findings: Sequence[Finding], causes: Mapping[str, Cause]) -> bool:
    """Whether one of them is the cause, and no broad one, to which experiments may find something more specific."""
    return any(one.outcome is Outcome.CAUSE and not causes[one.cause].is_broad for one in findings)


def _kept(findings: Sequence[Finding]) -> list[Finding]:
    """The same, the answer first; beside what explains all, what explains a part is ruled out."""
    answers = [one for one in findings if one.outcome in (Outcome.CAUSE, Outcome.ONE_OF)]
    rest = [one for one in findings if one not in answers]
    return answers + [
        one.model_copy(update={"outcome": Outcome.RULED_OUT}) if answers and one.outcome is Outcome.PARTLY else one
        for one in rest
    ]


def _upper_tail(z: float) -> float:
    return 0.5 * math.erfc(z / math.sqrt(2.0))
