"""No single token may be far off."""

from __future__ import annotations

from onepolicy.judgement.limits import Limits
from onepolicy.numerics.measurement import Measurement
from onepolicy.records.verdict import Status, Verdict


def max_abs_d(measured: Measurement, limits: Limits) -> Verdict:
    """Fails if |d| of any one token exceeds the limit. An exact statement about these tokens."""
    if not measured.same_meaning:
        why = "the two sides' logprobs mean different things, so their difference says nothing."
        return Verdict(check="max_abs_d", status=Status.UNKNOWN, message=why)
    if not measured.worst_by_token:
        return Verdict(check="max_abs_d", status=Status.UNKNOWN, message="there is no token to compare.")
    worst = measured.worst_by_token[0]
    bad = worst.max_abs_d > limits.max_abs_d
    position = int(worst.positions[worst.worst])
    return Verdict(
        check="max_abs_d",
        status=Status.FAIL if bad else Status.PASS,
        quantity="max_abs_d",
        value=worst.max_abs_d,
        limit=limits.max_abs_d,
        unit="nats",
        message=(
            f"the largest |d| is {worst.max_abs_d:.2g} nats, in rollout {worst.rollout_id} at position {position}, "
            f"limit {limits.max_abs_d:g}."
        ),
        evidence=tuple(
            detail.worst_place.evidence
            for detail in measured.worst_by_token
            if not bad or detail.max_abs_d > limits.max_abs_d
        ),
    )
