"""An offset on every token, however small: rounding has no direction."""

from __future__ import annotations

import math

from onepolicy.judgement.limits import FAIL_ALPHAS, Limits
from onepolicy.judgement.statistics import t_quantile
from onepolicy.numerics.checks.mean_ratio import FLOAT32_ROUNDING
from onepolicy.numerics.measurement import Measurement
from onepolicy.records.verdict import Status, Verdict

CHECK = "signed_mean"
_SECOND_ORDER = 2.0
"""times mean k3: noise of variance v on the logits moves the mean logprob by about v / 2, which is mean k3"""


def signed_mean(measured: Measurement, limits: Limits, *, required: bool = True) -> Verdict:
    """Fails if the mean of d is further from 0 than noise of this size allows.

    Two readings of one engine in one precision differ by rounding, which has no direction: the mean of d is 0 within
    its error over prompts, what a float32 cannot hold, and the second order of the noise. +1e-5 on every token is none
    of that, though every other number of it is far within any limit but a bitwise one. With a floor in the limits it
    may not exceed the largest mean |d| of the floor either. Informs where there is one prompt
    alone, which has no error.
    """
    ratio = measured.clusters.ratio()
    mean = measured.mean("d")
    if not measured.valid or not measured.same_meaning or not math.isfinite(mean):
        return _unknown("there are no two logprobs of one meaning to take a mean of d from.")
    if not math.isfinite(ratio.standard_error):
        return _unknown("one prompt is too few for the error of a mean of d.")
    width = _width(measured, limits, error=ratio.standard_error, clusters=ratio.clusters)
    within = abs(mean) <= width
    found = f"the mean of d is {mean:+.2g} nats, {width:.2g} is allowed by noise of this size"
    return Verdict(
        check=CHECK,
        status=Status.PASS if within else Status.FAIL,
        required=required,
        quantity="mean_d",
        value=mean,
        low=-width,
        high=width,
        limit=width,
        unit="nats",
        message=f"{found}."
        if within
        else f"{found}. Rounding has no direction: look for what is added to every token on one side.",
    )


def _width(measured: Measurement, limits: Limits, *, error: float, clusters: int) -> float:
    quantile = t_quantile(clusters - 1, FAIL_ALPHAS["mean_ratio"] / 2)
    width = quantile * error + FLOAT32_ROUNDING + _SECOND_ORDER * measured.mean("k3")
    if limits.floor is None:
        return width
    noise = max(variation.mean_abs_d for variation in limits.floor.variations)
    return min(width, max(noise, FLOAT32_ROUNDING))


def _unknown(why: str) -> Verdict:
    return Verdict(
        check=CHECK,
        status=Status.UNKNOWN,
        required=False,
        quantity="mean_d",
        unit="nats",
        message=f"not decided: {why}",
    )
