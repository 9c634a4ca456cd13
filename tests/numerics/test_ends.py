import numpy as np
import pytest

from onepolicy.judgement.limits import Limits
from onepolicy.numerics.checks.mask_ends import mask_ends
from onepolicy.records.tokens import TokenState
from onepolicy.records.verdict import Status


def rows(rollout, change, *, count=20):
    rng = np.random.default_rng(0)
    for number in range(count):
        p = -rng.exponential(1.0, 6)
        row = {"p": p, "q": p + 0.01 * rng.standard_normal(6), "name": f"r{number}"}
        yield rollout(**{**row, **change(row)})


def with_zero(side, place):
    return lambda row: {side: [0.0 if i == place % 6 else x for i, x in enumerate(row[side])]}


def without_value(side, place):
    def change(row):
        states = [TokenState.ABSENT if i == place % 6 else TokenState.VALUE for i in range(6)]
        return {f"{side}_states": states, side: [np.nan if s else x for s, x in zip(states, row[side], strict=True)]}

    return change


@pytest.mark.parametrize("fault", [with_zero, without_value])
@pytest.mark.parametrize("side", ["p", "q"])
@pytest.mark.parametrize(("place", "end"), [(0, "first"), (-1, "last")])
def test_a_mask_that_slipped_by_one_is_seen_with_side_and_end(rollout, measured, fault, side, place, end):
    name = {"p": "rollout", "q": "trainer"}[side]
    verdict = mask_ends(measured(list(rows(rollout, fault(side, place))), blocks=3), Limits())
    assert verdict.status is Status.FAIL
    assert f"the {end} compared token has no logprob on the {name} side" in verdict.message
    assert verdict.value == 20
    assert verdict.evidence[0].rollout_id == "r0"


@pytest.mark.parametrize("fault", [with_zero, without_value])
def test_values_missing_in_the_middle_are_no_slip(rollout, measured, fault):
    assert mask_ends(measured(list(rows(rollout, fault("p", 3)))), Limits()).status is Status.PASS


def test_a_certain_last_token_on_both_sides_is_no_slip(rollout, measured):
    certain = lambda row: {side: [*row[side][:-1], value] for side, value in (("p", 0.0), ("q", -1e-5))}  # noqa: E731
    assert mask_ends(measured(list(rows(rollout, certain))), Limits()).status is Status.PASS


@pytest.mark.parametrize(("place", "end"), [(0, "first"), (-1, "last")])
def test_an_end_that_both_sides_call_certain_is_told_and_decides_nothing(rollout, measured, place, end):
    change = lambda row: {**with_zero("p", place)(row), **with_zero("q", place)(row)}  # noqa: E731
    verdict = mask_ends(measured(list(rows(rollout, change))), Limits())
    assert (verdict.status, verdict.required) == (Status.UNKNOWN, False)
    assert f"the {end} compared token has exactly 0.0 on both sides" in verdict.message


def test_values_missing_all_over_are_left_to_coverage(rollout, measured):
    nothing = lambda row: {"p_states": [TokenState.ABSENT] * 6, "p": [np.nan] * 6}  # noqa: E731
    assert mask_ends(measured(list(rows(rollout, nothing))), Limits()).status is Status.PASS


def test_few_rollouts_decide_nothing(rollout, measured):
    verdict = mask_ends(measured(list(rows(rollout, with_zero("p", 0), count=5))), Limits())
    assert (verdict.status, verdict.required) == (Status.UNKNOWN, False)
