"""Recorded columns must hold numbers, and come from two computations."""

from __future__ import annotations

from onepolicy.judgement.limits import Limits
from onepolicy.numerics.measurement import Measurement
from onepolicy.records.verdict import Status, Verdict

MIN_TOKENS = 16
"""that are not certain; fewer say nothing of two engines"""
MOST_CERTAIN = 0.5
"""share of tokens that may be exactly 0.0 on both sides: a policy that is so certain is rare, a filled column is not"""
MOST_EQUAL = 0.1
"""share of the rollouts that may be the same on both sides, token for token"""
BITWISE = 1e-9
"""a limit of the mean KL from which down somebody expects the same number on both sides"""


def two_columns(measured: Measurement, limits: Limits) -> list[Verdict]:
    """Unknown if the columns of a file hold hardly a number, or one may be a copy of the other; else nothing.

    0.0 is what places are filled with, and a logprob that says nothing but "certain". Whole rollouts that are the same
    in every bit are a copy (a trainer that takes over the rollout side's logprobs), unless that is what is expected.
    """
    totals = measured.totals
    if not measured.valid:
        return []
    certain = measured.both_zero / measured.valid
    if totals.unsaturated < MIN_TOKENS or certain > MOST_CERTAIN:
        return [_verdict("both_zero_share", certain, _hardly_a_number(measured, certain))]
    if limits.mean_kl <= BITWISE or measured.equal_rollouts <= MOST_EQUAL * measured.valid_rollouts:
        return []
    return [_verdict("equal_rollouts", measured.equal_rollouts, _copies(measured))]


def _hardly_a_number(measured: Measurement, certain: float) -> str:
    return (
        f"{certain:.0%} of {measured.valid} tokens are exactly 0.0 on both sides, and {measured.totals.unsaturated} "
        "are not certain: filled places, or a policy of which these tokens say nothing. Look at what the columns hold."
    )


def _copies(measured: Measurement) -> str:
    return (
        f"{measured.equal_rollouts} of {measured.valid_rollouts} rollouts are the same on both sides in every token: "
        "one column may be a copy of the other (a trainer that takes over the rollout side's logprobs). If both were "
        "computed, and bit for bit is what you expect, say so with --limits bitwise."
    )


def _verdict(quantity: str, value: float, message: str) -> Verdict:
    return Verdict(check="two_columns", status=Status.UNKNOWN, quantity=quantity, value=value, message=message)
