"""The mask must begin and end where the logprobs do."""

from __future__ import annotations

from onepolicy.judgement.limits import Limits
from onepolicy.numerics.ends import ENDS, SIDES
from onepolicy.numerics.measurement import Measurement
from onepolicy.records.verdict import Evidence, Status, Verdict

MIN_ROLLOUTS = 8
MOST = 0.5
"""share of rollouts with an empty end from which the mask is said to have slipped"""
CERTAIN_END = "rollouts_with_a_certain_end"
FEW = 0.05
"""largest share of empty places between the ends; above it values are missing all over, which coverage tells"""


def mask_ends(measured: Measurement, limits: Limits) -> Verdict:
    """Fails if the first or the last compared token has no logprob in most rollouts, and those between have one."""
    ends = measured.ends
    if ends.rollouts < MIN_ROLLOUTS:
        message = f"not checked: {ends.rollouts} rollouts of three tokens or more; {MIN_ROLLOUTS} are needed."
        return Verdict(check="mask_ends", status=Status.UNKNOWN, required=False, message=message)
    for row, side in enumerate(SIDES):
        if ends.empty_inner[row] > FEW * ends.inner:
            continue
        for column, end in enumerate(ENDS):
            empty = int(ends.empty_ends[row, column])
            if empty > MOST * ends.rollouts:
                return _slipped(measured, side, end, empty)
    for column, end in enumerate(ENDS):
        if ends.both_zero[column] > MOST * ends.rollouts:
            return _certain(measured, end, int(ends.both_zero[column]))
    return Verdict(
        check="mask_ends", status=Status.PASS, message="the compared tokens begin and end where both sides have values."
    )


def _certain(measured: Measurement, end: str, count: int) -> Verdict:
    side = "prompt" if end == "first" else "padding"
    return Verdict(
        check="mask_ends",
        status=Status.UNKNOWN,
        required=False,
        quantity=CERTAIN_END,
        value=count,
        unit="rollouts",
        message=(
            f"in {count} of {measured.ends.rollouts} rollouts the {end} compared token has exactly 0.0 on both sides: "
            f"a token that is certain, such as one that a template forces, or one of the {side} that the mask takes in."
        ),
    )


def _slipped(measured: Measurement, side: str, end: str, empty: int) -> Verdict:
    where = "early: it begins at a token of the prompt" if end == "first" else "late: it ends beyond the last token"
    return Verdict(
        check="mask_ends",
        status=Status.FAIL,
        required=measured.same_meaning,
        quantity="rollouts_with_an_empty_end",
        value=empty,
        limit=0,
        unit="rollouts",
        message=(
            f"in {empty} of {measured.ends.rollouts} rollouts the {end} compared token has no logprob on the {side} "
            f"side, or a 0.0 that stands for none, and those between have one. The mask is a position too {where}, or "
            f"the {side} side's logprobs are one too short. Look at rollout {measured.ends.first}."
        ),
        evidence=(Evidence(rollout_id=measured.ends.first, note=f"{end} compared token, {side} side"),),
    )
