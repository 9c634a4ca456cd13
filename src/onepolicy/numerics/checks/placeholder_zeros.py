"""A logprob of exactly 0.0 is a certain token, or a place that somebody filled."""

from __future__ import annotations

from onepolicy.judgement.limits import Limits
from onepolicy.numerics.measurement import Measurement
from onepolicy.records.verdict import Status, Verdict


def placeholder_zeros(measured: Measurement, limits: Limits) -> Verdict:
    """Fails if one side says exactly 0.0 (certain) where the other says below -1e-4.

    Where truncation leaves one token its logprob is 0.0 by right, so under top-p, top-k or min-p it only informs; so it
    does where the two sides mean different things, or nothing was compared.
    """
    if not measured.valid:
        return Verdict(
            check="placeholder_zeros",
            status=Status.UNKNOWN,
            required=False,
            message="not checked: no token has a logprob on both sides.",
        )
    required = measured.same_meaning and not measured.rollout_meaning.truncates
    if not measured.zeros.rollouts:
        return Verdict(
            check="placeholder_zeros",
            status=Status.PASS,
            required=required,
            message="no 0.0 stands for a value.",
        )
    first = measured.zeros.first[0]
    return Verdict(
        check="placeholder_zeros",
        status=Status.FAIL,
        required=required,
        quantity="contradicted_zeros",
        value=measured.zeros.rollouts,
        limit=0,
        unit="rollouts",
        message=(
            f"in {measured.zeros.rollouts} rollouts one side has a logprob of exactly 0.0 where the other does not; "
            f"the first is rollout {first.rollout_id} at position {first.position} (rollout {first.rollout_logprob:g}, "
            f"trainer {first.trainer_logprob:g}). A 0.0 is often a filled-in placeholder; mark such places absent."
        ),
        evidence=tuple(place.evidence for place in measured.zeros.first),
    )
