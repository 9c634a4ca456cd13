"""Every number must be a logprob."""

from __future__ import annotations

from onepolicy.judgement.limits import Limits
from onepolicy.numerics.measurement import Measurement
from onepolicy.records.tokens import TokenState
from onepolicy.records.verdict import Status, Verdict


def valid_logprobs(measured: Measurement, limits: Limits) -> Verdict:
    """Fails if an engine gave NaN, an infinity, a sentinel or a positive number for a compared token.

    Where neither gave a number there is nothing to check: then it informs, and coverage decides.
    """
    sides = (measured.rollout_states, measured.trainer_states)
    rollout, trainer = (int(states[TokenState.INVALID]) for states in sides)
    if not any(states[TokenState.VALUE] + states[TokenState.INVALID] for states in sides):
        return Verdict(
            check="valid_logprobs", status=Status.UNKNOWN, required=False, message="not checked: there is no number."
        )
    if not rollout + trainer:
        return Verdict(check="valid_logprobs", status=Status.PASS, value=0, message="every number is a logprob.")
    first = measured.invalid.first[0]
    return Verdict(
        check="valid_logprobs",
        status=Status.FAIL,
        quantity="invalid_tokens",
        value=rollout + trainer,
        limit=0,
        unit="tokens",
        message=(
            f"{rollout} rollout and {trainer} trainer values in {measured.invalid.rollouts} rollouts are no logprobs "
            f"(NaN, infinite, a sentinel such as -9999, or positive); the first is in rollout {first.rollout_id} at "
            f"position {first.position}. Look at what the engine returns there."
        ),
        evidence=tuple(place.evidence for place in measured.invalid.first),
    )
