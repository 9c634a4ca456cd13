"""No single rollout may be bad: a mean over thousands hides one."""

from __future__ import annotations

from onepolicy.judgement.limits import Limits
from onepolicy.numerics.measurement import Measurement
from onepolicy.records.verdict import Evidence, Status, Verdict

FAR = 20
"""times the mean k3 of the fifth worst rollout: beyond it one is suspected to be mispaired, and no longer just worse"""


def worst_rollout(measured: Measurement, limits: Limits) -> Verdict:
    """Fails if the mean k3 of any one rollout exceeds the limit. An exact statement about these tokens."""
    if not measured.same_meaning:
        why = "the two sides' logprobs mean different things, so their difference says nothing."
        return Verdict(check="worst_rollout", status=Status.UNKNOWN, message=why)
    if not measured.worst_by_kl:
        return Verdict(check="worst_rollout", status=Status.UNKNOWN, message="there is no rollout to compare.")
    worst = measured.worst_by_kl[0]
    bad = worst.mean_k3 > limits.worst_rollout_kl
    limit = limits.worst_rollout_kl
    message = f"the worst rollout, {worst.rollout_id}, has a mean k3 of {worst.mean_k3:.2g}, limit {limit:g}"
    others = measured.worst_by_kl[-1].mean_k3
    if bad and worst.mean_k3 > FAR * others:
        message += (
            f", where all but a few have at most {others:.2g}. Its logprobs may belong to other tokens: look for a row "
            "that was paired wrongly or shifted"
        )
    return Verdict(
        check="worst_rollout",
        status=Status.FAIL if bad else Status.PASS,
        quantity="rollout_mean_k3",
        value=worst.mean_k3,
        limit=limit,
        unit="nats per token",
        message=f"{message}.",
        evidence=tuple(
            Evidence(
                rollout_id=detail.rollout_id,
                note=f"mean k3 {detail.mean_k3:.3g}, mean |d| {detail.mean_abs_d:.3g}",
            )
            for detail in measured.worst_by_kl
            if not bad or detail.mean_k3 > limits.worst_rollout_kl
        ),
    )
