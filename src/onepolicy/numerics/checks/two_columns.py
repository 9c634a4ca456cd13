"""Recorded columns must come from two computations."""

from __future__ import annotations

from onepolicy.judgement.limits import Limits
from onepolicy.numerics.measurement import Measurement
from onepolicy.records.verdict import Status, Verdict

MIN_TOKENS = 16
BITWISE = 1e-9
"""a limit of the mean KL from which down somebody expects the same number on both sides"""


def two_columns(measured: Measurement, limits: Limits) -> list[Verdict]:
    """Unknown if both columns of a file are the same in every bit and nobody said that they must be; else nothing.

    Then one may be a copy of the other, as in a mode that takes the rollout side's logprobs for the trainer's.
    Saturated tokens agree trivially and do not count.
    """
    totals = measured.totals
    same = totals.unsaturated >= MIN_TOKENS and totals.bitwise_equal_unsaturated == totals.unsaturated
    if not same or limits.mean_kl <= BITWISE:
        return []
    return [
        Verdict(
            check="two_columns",
            status=Status.UNKNOWN,
            quantity="bitwise_share_unsaturated",
            value=1.0,
            unit="share of tokens",
            message=(
                f"both columns are the same in every bit over {totals.unsaturated} tokens that are not certain: one "
                "may be a copy of the other (a trainer that takes over the rollout side's logprobs). If both were "
                "computed, and bit for bit is what you expect, say so with --limits bitwise."
            ),
        )
    ]
