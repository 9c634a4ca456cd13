"""What is known of a horizon -> verdicts.

A pass needs more than that nothing was found: what could be there unseen must stay below the spread that any mismatch
has, which is sigma sqrt(T) after T tokens.
"""

from __future__ import annotations

import math

from onepolicy.judgement.limits import ALPHA, MIN_CLUSTERS
from onepolicy.judgement.statistics import binomial_bounds
from onepolicy.numerics.checks.mean_ratio import FLOAT32_ROUNDING
from onepolicy.numerics.horizon.drift import width_of
from onepolicy.numerics.horizon.measured import Measured
from onepolicy.numerics.horizon.result import Components, Drift, Growth
from onepolicy.records.verdict import Status, Verdict

MOST_SPREAD = 2.0
"""what is persistent and unseen may at most double the spread at the horizon: omega^2 T <= 3 sigma^2"""


def horizon_verdicts(found: Measured, *, most_outside: float | None) -> list[Verdict]:
    """All of them, in the order of judgement. most_outside: limit of the share outside the band; None only shows it."""
    return [drift_verdict(found), bias_verdict(found), growth_verdict(found), ratio_verdict(found, most_outside)]


def drift_verdict(found: Measured) -> Verdict:
    """Fails if the running sum drifts by more than -KL per token; unknown if such a drift could hide."""
    if found.drift is None or found.bias is None or not found.tokens:
        return _unknown("drift", found, _why_nothing(found))
    drift, spread = found.drift, math.sqrt(found.bias.per_token * found.tokens)
    hidden = (drift.high - FLOAT32_ROUNDING) * found.tokens
    said = (
        f"a token adds {_signed(drift.expected)} nats by its KL and {_signed(drift.beyond)} beyond (error "
        f"{drift.standard_error:.2g})"
    )
    if not drift.low <= drift.beyond <= drift.high:
        message = (
            f"{said}: after {found.tokens:,} tokens {_signed(drift.beyond * found.tokens)} nats that no KL explains. "
            "Look for an offset on every token, truncation on one side, or values that were filled in."
        )
        return _drift(Status.FAIL, drift, message)
    if hidden <= spread:
        most = f"a drift of {drift.high * found.tokens:.2g} nats after {found.tokens:,} tokens would be seen"
        return _drift(Status.PASS, drift, f"{said}; {most}.")
    chance = width_of(drift.standard_error, found.groups) * found.tokens
    left = spread - (hidden - chance)
    advice = f"{_times((chance / left) ** 2)} as many prompts" if left > 0 else "Logprobs for all tokens"
    message = (
        f"{said}; a drift of up to {hidden:.2g} nats after {found.tokens:,} tokens, more than the spread of "
        f"{spread:.2g}, would not be seen. {advice} would decide."
    )
    return _drift(Status.UNKNOWN, drift, message)


def bias_verdict(found: Measured) -> Verdict:
    """Fails if rollouts have a bias of their own beyond their KL; unknown if one could hide that matters."""
    bias = found.bias
    if bias is None or not found.tokens:
        return _unknown("persistent_bias", found, _why_nothing(found))
    blocks = bias.blocks / bias.rollouts
    said = f"F = {bias.f:.3g} over {bias.rollouts:,} rollouts of {blocks:.1f} blocks, p = {bias.p:.2g}"
    if bias.p < ALPHA:
        message = (
            f"rollouts keep a bias of their own, of about {math.sqrt(max(bias.persistent, 0.0)):.2g} nats per token, "
            f"that their KL does not explain: {said}. Look at what differs between rollouts: weight version, sampling, "
            "template, cache, and values that were filled in."
        )
        return _bias(Status.FAIL, bias, message)
    grown = math.sqrt(max(bias.high, 0.0)) * found.tokens
    chance = math.sqrt(bias.per_token * found.tokens)
    if grown**2 <= (MOST_SPREAD**2 - 1) * chance**2:
        message = f"no rollout has a bias of its own beyond its KL: {said}. {_of_kl(found)}"
        return _bias(Status.PASS, bias, message.strip())
    message = (
        f"none is seen ({said}); one of {grown:.2g} nats after {found.tokens:,} tokens could hide, where chance "
        f"gives {chance:.2g}. Record more prompts, or longer rollouts."
    )
    return _bias(Status.UNKNOWN, bias, message)


def growth_verdict(found: Measured) -> Verdict:
    """Whether the mismatch stays the same along a rollout; informs, as the extrapolation assumes it."""
    grown = found.growth
    if grown is None:
        message = f"not known: {found.length:,} tokens of the fixed cohort are too few, or nothing differs in them."
        return Verdict(check="by_position", status=Status.UNKNOWN, required=False, message=message)
    said = f"k3 later in the first {found.length:,} tokens is {grown.ratio:.2g} times that earlier"
    steady = _grows(grown) == 0
    varies = "" if steady else ": it is not the same along a rollout"
    return Verdict(
        check="by_position",
        status=Status.PASS if steady else Status.UNKNOWN,
        required=False,
        quantity="k3_growth",
        value=grown.ratio,
        low=grown.low,
        high=grown.high,
        message=f"{said} ({grown.low:.2g} to {grown.high:.2g}){varies}.",
    )


def ratio_verdict(found: Measured, most_outside: float | None) -> Verdict:
    """The share of sequence ratios outside the band at the horizon; without a limit it informs."""
    there = found.extrapolation
    if there is None:
        return _unknown("sequence_ratio", found, f"{found.refused}.")
    band = f"[{found.band[0]:g}, {found.band[1]:g}]"
    message = (
        f"after {there.tokens:,} tokens {there.outside:.1%} ({there.low:.1%} to {there.high:.1%}) of sequence ratios "
        f"are outside {band}"
    )
    status, why = _ratio_status(found, most_outside)
    return Verdict(
        check="sequence_ratio",
        status=status,
        required=most_outside is not None or status is Status.UNKNOWN,
        kind="about the policy",
        quantity="sequence_ratio_outside",
        value=there.outside,
        low=there.low,
        high=there.high,
        limit=most_outside,
        unit="share of rollouts",
        message=f"{message}{why}.",
    )


def _ratio_status(found: Measured, most_outside: float | None) -> tuple[Status, str]:
    there = found.extrapolation
    assert there is not None
    if drift_verdict(found).status is Status.FAIL:
        return Status.UNKNOWN, ", if -KL were all that the sum drifts by, and it is not"
    if _misfit(found) and (most_outside is not None or found.tokens > found.length):
        return Status.UNKNOWN, f", by a formula that does not fit: {_observed(found)}"
    limit = "" if most_outside is None else f"; the limit is {most_outside:.1%}"
    grows = _grows(found.growth) if found.growth is not None and found.tokens > found.length else 0
    if grows > 0 and (most_outside is None or there.low <= most_outside):
        return Status.UNKNOWN, f"{limit}, if the mismatch stayed as it is, and it grows along a rollout"
    if most_outside is None or there.high <= most_outside:
        return Status.PASS, limit
    if there.low > most_outside and grows >= 0:
        return Status.FAIL, limit
    falls = ", and the mismatch falls along a rollout" if grows < 0 else ". More prompts would decide"
    return Status.UNKNOWN, f"{limit}{falls}"


def _misfit(found: Measured) -> bool:
    """Whether the share that was observed at the measured length is another than the formula's, beyond chance.

    One spread for all rollouts is the formula's, and rollouts that differ widely in their KL have no such one.
    """
    there, of = found.at_measured, found.counts["cohort_prompts"]
    if there is None or found.observed_outside is None or not of:
        return False
    bad = round(found.observed_outside * of)  # samples of a prompt are not independent: a prompt counts once
    low, high = binomial_bounds(bad=bad, of=of, lower_alpha=ALPHA, upper_alpha=ALPHA)
    return low > there.high or high < there.low


def _observed(found: Measured) -> str:
    assert found.at_measured is not None
    assert found.observed_outside is not None
    return (
        f"{found.observed_outside:.1%} are observed after {found.length:,} tokens where it gives "
        f"{found.at_measured.outside:.1%}"
    )


def _grows(growth: Growth) -> int:
    """1 if the mismatch is larger later on, -1 if it is smaller, beyond chance; else 0."""
    return int(growth.low > 1) - int(growth.high < 1)


def _of_kl(found: Measured) -> str:
    """What the other test says: rollouts may well differ in their KL."""
    spread = found.spread
    if spread is None or spread.p >= ALPHA:
        return ""
    return f"They differ in their KL (F = {spread.f:.3g}, p = {spread.p:.2g}), which the extrapolation counts in."


def _why_nothing(found: Measured) -> str:
    if found.groups < MIN_CLUSTERS:
        return f"{found.groups} prompts are too few, {MIN_CLUSTERS} are needed."
    if found.drift is None or not found.tokens:
        return f"{found.refused}."
    return "no rollout has two blocks of 32 tokens. Record with a larger --max-new-tokens."


def _unknown(check: str, found: Measured, message: str) -> Verdict:
    return Verdict(check=check, status=Status.UNKNOWN, kind="about the policy", message=f"not decided: {message}")


def _drift(status: Status, drift: Drift, message: str) -> Verdict:
    return Verdict(
        check="drift",
        status=status,
        kind="about the policy",
        quantity="drift_beyond_kl",
        value=drift.beyond,
        low=drift.low,
        high=drift.high,
        limit=0.0,
        unit="nats per token",
        message=message,
    )


def _bias(status: Status, bias: Components, message: str) -> Verdict:
    return Verdict(
        check="persistent_bias",
        status=status,
        kind="about the policy",
        quantity="persistent_variance",
        value=bias.persistent,
        low=bias.low,
        high=bias.high,
        limit=0.0,
        unit="square nats per token",
        message=message,
    )


def _signed(value: float) -> str:
    return f"{value + 0.0:+.2g}"


def _times(more: float) -> str:
    return f"{math.ceil(more)} times"
