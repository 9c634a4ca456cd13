"""The mean divergence per token: the check that gates."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, Context

from onepolicy.judgement.limits import ALPHA, LOOK_ALPHAS, MIN_CLUSTERS, MIN_EFFECTIVE_CLUSTERS, Limits
from onepolicy.judgement.looks import Look
from onepolicy.judgement.statistics import Estimate, prompts_needed
from onepolicy.numerics.measurement import Measurement
from onepolicy.records.verdict import Status, Verdict, VerdictKind

_TWO_DIGITS_UP = Context(prec=2, rounding=ROUND_CEILING)


def mean_kl(measured: Measurement, limits: Limits) -> Verdict:
    """Held against the limit with its interval over prompt groups if the tokens are a sample of the policy.

    For other tokens (fixed sequences, greedy sampling) it is a mean over these tokens, without an interval, and is not
    called a KL. Unknown under differing meanings, without tokens, or with too few prompts.
    """
    estimate = measured.gate()
    if not measured.valid or not measured.same_meaning or math.isnan(estimate.value):
        return _without_number(measured, limits)
    if measured.is_kl and measured.rollout_meaning.truncates and measured.hybrid_tokens < measured.valid:
        return _without_number(measured, limits)
    if measured.excluded:
        return _without_number(measured, limits)
    if measured.is_kl:
        status, message = _about_the_policy(estimate, limits.mean_kl, measured.look)
        kind: VerdictKind = "about the policy"
    else:
        status = Status.PASS if estimate.value <= limits.mean_kl else Status.FAIL
        message, kind = _on_these_tokens(estimate, limits.mean_kl), "on these tokens"
    return Verdict(
        check="mean_kl",
        status=status,
        kind=kind,
        quantity=quantity(measured),
        value=estimate.value,
        low=_finite(estimate.low) if measured.is_kl else None,
        high=_finite(estimate.high) if measured.is_kl else None,
        limit=limits.mean_kl,
        unit="nats per token",
        message=message,
    )


def quantity(measured: Measurement) -> str:
    """The name of what gates here."""
    if not measured.is_kl:
        return "k3_on_these_tokens"
    if not measured.hybrid_tokens:
        return "kl_k3"
    return "kl_hybrid" if measured.hybrid_tokens == measured.valid else "kl_hybrid_and_k3"


def _about_the_policy(estimate: Estimate, limit: float, look: Look) -> tuple[Status, str]:
    if math.isinf(estimate.value):
        return Status.FAIL, (
            "KL is infinite: on some token the trainer's logprob is hundreds of nats above the rollout side's, so the "
            "rollout side's cannot be of the token that it sampled."
        )
    if estimate.clusters < MIN_CLUSTERS or estimate.effective_clusters < MIN_EFFECTIVE_CLUSTERS:
        return Status.UNKNOWN, (
            f"KL {estimate.value:.2g} comes from {estimate.clusters} prompts (effectively "
            f"{estimate.effective_clusters:.1f}); {MIN_CLUSTERS} are needed to say anything about the policy. Record "
            "more prompts."
        )
    shown = f"KL {estimate.value:.2g} nats per token ({look.bounds} {estimate.low:.2g} and {estimate.high:.2g})"
    if not look.decides:
        return Status.UNKNOWN, (
            f"{shown}, limit {limit:g}. This is look {look.number} at a run that grew, and who looks often enough sees "
            f"a pass by chance: {len(LOOK_ALPHAS)} looks are allowed. Record a new run of the size that is needed."
        )
    if estimate.high <= limit:
        return Status.PASS, f"{shown}, limit {limit:g}."
    if estimate.low > limit:
        return (
            Status.FAIL,
            f"{shown}, limit {limit:g}. The smallest limit that this check would pass is {_up(estimate.high)}.",
        )
    return Status.UNKNOWN, f"{shown}, limit {limit:g} lies inside. {_more(estimate, limit, look)}"


def _more(estimate: Estimate, limit: float, look: Look) -> str:
    """How many prompts decide at the next look, which has its own level, or in a new run if there is none."""
    anew = not look.next.decides
    needed = prompts_needed(estimate, limit=limit, upper_alpha=ALPHA if anew else look.next.alpha)
    if needed > 50 * estimate.clusters:
        return f"The value is too close to the limit: {50 * estimate.clusters} prompts would not decide."
    if anew:
        prompts = math.ceil(max(needed, MIN_CLUSTERS))
        return f"No look at this run is left; a new run of about {prompts} prompts would decide."
    more = math.ceil(max(needed - estimate.clusters, 1))
    return f"About {more} more prompts would decide (--extend, with a suite that has them)."


def _on_these_tokens(estimate: Estimate, limit: float) -> str:
    shown = f"mean k3 over these tokens is {estimate.value:.2g} nats, limit {limit:g}"
    if estimate.value <= limit:
        return f"{shown}. The tokens are no sample of the policy, so this is no KL."
    return f"{shown}. The smallest limit that this check would pass is {_up(estimate.value)}."


def _without_number(measured: Measurement, limits: Limits) -> Verdict:
    if not measured.valid:
        why = "no token has a logprob on both sides, so there is nothing to average."
    elif not measured.same_meaning:
        why = "the two sides' logprobs mean different things, so their difference is no divergence."
    elif measured.excluded:
        why = (
            f"{measured.excluded} tokens have a probability of zero on one side, so the KL is infinite, however few "
            "they are; see kept_set."
        )
    elif measured.rollout_meaning.truncates:
        why = (
            f"under {measured.rollout_meaning} k3 misses what the trainer gives to tokens that truncation removed; "
            f"a KL needs a whole top list on both sides (--top) for each token, and {measured.hybrid_tokens} of "
            f"{measured.valid} have one."
        )
    else:
        why = "the mean is not a number."
    return Verdict(
        check="mean_kl",
        status=Status.UNKNOWN,
        kind="about the policy" if measured.is_kl else "on these tokens",
        quantity=quantity(measured),
        limit=limits.mean_kl,
        unit="nats per token",
        message=why,
    )


def _up(value: float) -> str:
    """Two significant digits of the number as it is written, rounded up, so that the limit it names does pass."""
    if not math.isfinite(value) or value <= 0:
        return f"{value:g}"
    return f"{float(_TWO_DIGITS_UP.create_decimal(repr(value))):.2g}"


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
