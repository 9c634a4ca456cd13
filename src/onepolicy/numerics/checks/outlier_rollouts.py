"""How many rollouts may be bad that were not seen?"""

from __future__ import annotations

from onepolicy.judgement.limits import FAIL_ALPHAS, Limits
from onepolicy.judgement.statistics import binomial_bounds
from onepolicy.numerics.measurement import Measurement
from onepolicy.records.verdict import Status, Verdict


def outlier_rollouts(measured: Measurement, limits: Limits) -> Verdict:
    """Holds the share of prompts with a bad rollout against its limit, with an exact binomial bound.

    A mean cannot exclude rare bad rollouts: none bad among 24 prompts still allows 17.5 % at 99 %.
    """
    prompts, bad = len(measured.clusters), measured.clusters.bad(limits.worst_rollout_kl)
    if not prompts or not measured.same_meaning or not measured.valid:
        return Verdict(check="outlier_rollouts", status=Status.UNKNOWN, message="there is no rollout to compare.")
    low, high = binomial_bounds(
        bad=bad, of=prompts, lower_alpha=FAIL_ALPHAS["outlier_rollouts"], upper_alpha=measured.look.alpha
    )
    level = f"{100 * (1 - measured.look.alpha):.3g} %"
    shown = f"{bad} of {prompts} prompts have a rollout beyond a mean k3 of {limits.worst_rollout_kl:g}"
    if measured.is_kl and not measured.look.decides:
        status, message = Status.UNKNOWN, f"{shown}; no look at this run is left that could decide. Record a new one."
    elif not measured.is_kl:
        status, message = Status.PASS if bad <= limits.outlier_rate * prompts else Status.FAIL, f"{shown}."
    elif low > limits.outlier_rate:
        status, message = (
            Status.FAIL,
            f"{shown}; at least {low:.1%} of all are (99.5 %), limit {limits.outlier_rate:.0%}.",
        )
    elif high > limits.outlier_rate:
        status = Status.UNKNOWN
        limit = f"limit {limits.outlier_rate:.0%}"
        message = f"{shown}; up to {high:.1%} of all may be ({level}), {limit}. {_more(measured)}"
    else:
        status, message = Status.PASS, f"{shown}; at most {high:.1%} of all are ({level})."
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


def _more(measured: Measurement) -> str:
    return "Record more prompts." if measured.look.next.decides else "Record a new run of more prompts."
