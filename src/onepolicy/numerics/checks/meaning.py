"""Both sides' logprobs must belong to the same kind of distribution."""

from __future__ import annotations

from onepolicy.judgement.limits import Limits
from onepolicy.numerics.measurement import Measurement
from onepolicy.records.verdict import Status, Verdict


def meaning(measured: Measurement, limits: Limits) -> Verdict:
    """Unknown if one side's logprobs are raw and the other's processed, or processed otherwise."""
    same = measured.same_meaning
    if same:
        message = f"both sides' logprobs are {measured.rollout_meaning}."
    else:
        message = (
            f"the rollout logprobs are {measured.rollout_meaning}, the trainer logprobs {measured.trainer_meaning}: "
            "their difference says nothing about the policies. Score the trainer under the rollout side's meaning."
        )
    return Verdict(check="meaning", status=Status.PASS if same else Status.UNKNOWN, message=message)
