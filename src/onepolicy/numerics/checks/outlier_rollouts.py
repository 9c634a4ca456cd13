"""How many rollouts may be bad that were not seen?"""

from __future__ import annotations

from onepolicy.judgement.limits import Limits
from onepolicy.judgement.statistics import binomial_bounds
from onepolicy.numerics.measurement import Measurement
from onepolicy.records.verdict import Status, Verdict


def outlier_rollouts(measured: Measurement, limits: Limits) -> Verdict:
    """Holds the share of prompts with a bad rollout against its limit, with an exact binomial bound.

    A mean cannot exclude rare bad rollouts: none bad among 24 prompts still allows 11.7 % at 95 %.
    """
    prompts, bad = len(measured.clusters), measured.clusters.bad(limits.worst_rollout_kl)
    if not prompts or not measured.same_meaning or not measured.valid:
        return Verdict(check="outlier_rollouts", status=Status.UNKNOWN, message="there is no rollout to compare.")
    low, high = binomial_bounds(bad=bad, of=prompts)
    shown = f"{bad} of {prompts} prompts have a rollout beyond a mean k3 of {limits.worst_rollout_kl:g}"
    if not measured.is_kl:
        status, message = Status.PASS if bad <= limits.outlier_rate * prompts else Status.FAIL, f"{shown}."
    elif low > limits.outlier_rate:
        status, message = (
            Status.FAIL,
            f"{shown}; at least {low:.1%} of all are (95 %), limit {limits.outlier_rate:.0%}.",
        )
    elif high > limits.outlier_rate:
        status = Status.UNKNOWN
        message = (
            f"{shown}; up to {high:.1%} of all may be (95 %), limit {limits.outlier_rate:.0%}. Record more prompts."
        )
    else:
        status, message = Status.PASS, f"{shown}; at most {high:.1%} of all are (95 %)."
    return Verdict(
        check="outlier_rollouts",
        status=status,
        kind="about the policy" if measured.is_kl else "on these tokens",
        quantity="share_of_prompts_with_an_outlier",
        value=bad / prompts,
        low=low if measured.is_kl else None,
        high=high if measured.is_kl else None,
        limit=limits.outlier_rate,
        unit="share of prompts",
        message=message,
    )
