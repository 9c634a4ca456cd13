"""The second identity: tokens are drawn from the distribution that was reported."""

from __future__ import annotations

import math

from onepolicy.judgement.limits import Limits
from onepolicy.numerics.measurement import Measurement
from onepolicy.records.verdict import Status, Verdict

LIMIT = 4.0
"""standard deviations, either way, a level of 6e-5; controls stay below 2.3, a temperature of 0.7 gives -23 in 2,716
tokens"""
MIN_TOKENS = 200
MISSING = 3.0
"""nats by which each token without a value may shift the sum: which ones are missing may depend on the token"""


def sampled_as_reported(measured: Measurement, limits: Limits) -> Verdict:
    """Fails if sampled tokens are more or less likely than the rollout side's own distributions say.

    z = sum(-logprob - entropy) / sqrt(sum of varentropy). A temperature or truncation that the logprobs do not show is
    invisible in d, as both sides agree on the logprobs; here it is not.
    """
    surprise = measured.surprise
    if not measured.is_kl or surprise.tokens < MIN_TOKENS or math.isnan(surprise.z):
        return Verdict(
            check="sampled_as_reported",
            status=Status.UNKNOWN,
            required=False,
            message=f"not decided: {_why(measured)}.",
        )
    allowed = LIMIT + (measured.compared - surprise.tokens) * MISSING / math.sqrt(surprise.variance)
    holds = abs(surprise.z) <= allowed
    mean = surprise.excess / surprise.tokens
    message = f"sampled tokens are as likely as the rollout logprobs say (z = {surprise.z:+.1f})"
    if not holds:
        direction = "a temperature above" if mean > 0 else "truncation, or a temperature below"
        message = (
            f"sampled tokens are on average {abs(mean):.2g} nats {'less' if mean > 0 else 'more'} likely than their "
            f"distributions say (z = {surprise.z:+.1f}). They were drawn under {direction} that of the rollout logprobs"
        )
    return Verdict(
        check="sampled_as_reported",
        status=Status.PASS if holds else Status.FAIL,
        kind="about the policy",
        quantity="surprise_z",
        value=surprise.z,
        limit=allowed,
        unit="standard deviations",
        message=f"{message}.",
    )


def _why(measured: Measurement) -> str:
    if not measured.is_kl:
        return "the tokens were not meant to be drawn from the distribution that the rollout logprobs belong to"
    if not measured.surprise.tokens:
        return "the rollout engine gives no entropy of its distributions"
    return f"{measured.surprise.tokens} tokens are too few"
