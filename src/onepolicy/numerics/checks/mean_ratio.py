"""The first identity: the importance ratio averages to one."""

from __future__ import annotations

import math

from onepolicy.judgement.limits import FAIL_ALPHAS, MIN_CLUSTERS, Limits
from onepolicy.judgement.statistics import Estimate, t_quantile
from onepolicy.numerics.measurement import Measurement
from onepolicy.records.verdict import Status, Verdict

FLOAT32_ROUNDING = 2e-6
"""a mean of this size is rounding: float32 logits between 32 and 64 are spaced 4e-6"""


def mean_ratio(measured: Measurement, limits: Limits) -> Verdict:
    """Fails if mean(exp(d)) differs from 1 by more than its error allows.

    For tokens sampled from the rollout policy it is 1 whatever the numerics of the trainer, as its probabilities sum to
    one. A constant offset, a renormalised kept set or a filled value breaks it while k3 stays small. Tokens without a
    logprob widen what is allowed by their share: which ones are missing may depend on the token. Informs where the
    tokens are no such sample.
    """
    ratio = measured.clusters.ratio()
    known = measured.is_kl and measured.same_meaning and ratio.clusters >= MIN_CLUSTERS and _is_number(ratio)
    if not known:
        return _without_answer(measured, ratio)
    missing = 1 - measured.valid / measured.compared
    width = (
        t_quantile(ratio.clusters - 1, FAIL_ALPHAS["mean_ratio"] / 2) * ratio.standard_error
        + FLOAT32_ROUNDING
        + missing
    )
    off = ratio.value - 1
    found = f"the mean importance ratio is 1 {off:+.2g} (error {ratio.standard_error:.2g})"
    if abs(off) <= width:
        message = f"{found}; a constant offset of {width:.1g} nats would be seen."
    else:
        message = (
            f"{found}, and it is 1 for tokens sampled from the rollout policy whatever the numerics. Look for an "
            "offset on every token, truncation on one side, or values that were filled in."
        )
    return Verdict(
        check="mean_ratio",
        status=Status.PASS if abs(off) <= width else Status.FAIL,
        kind="about the policy",
        quantity="mean_importance_ratio",
        value=ratio.value,
        low=1 - width,
        high=1 + width,
        limit=1.0,
        message=message,
    )


def _is_number(ratio: Estimate) -> bool:
    return math.isfinite(ratio.value) and math.isfinite(ratio.standard_error)


def _without_answer(measured: Measurement, ratio: Estimate) -> Verdict:
    if not measured.is_kl or not measured.same_meaning:
        why = "the tokens are no sample of the distribution that the rollout logprobs belong to"
    elif math.isinf(ratio.value):
        why = "the mean importance ratio is infinite"
    else:
        why = f"{ratio.clusters} prompts are too few"
    return Verdict(
        check="mean_ratio",
        status=Status.UNKNOWN,
        required=False,
        quantity="mean_importance_ratio",
        value=ratio.value if math.isfinite(ratio.value) else None,
        message=f"not decided: {why}.",
    )
