"""Each look spends some of the level, and the levels of all checks together stay within what is promised."""

import itertools

import pytest

from onepolicy.judgement.limits import FAIL_ALPHAS, LOOK_ALPHAS
from onepolicy.judgement.looks import Look


def holm(p_values, *, level):
    """Which hypotheses Holm's step-down procedure rejects, in the order given."""
    rejected = [False] * len(p_values)
    for rank, i in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        if p_values[i] > level / (len(p_values) - rank):
            break
        rejected[i] = True
    return rejected


def test_three_looks_spend_five_percent_and_the_fourth_has_none():
    assert sum(LOOK_ALPHAS) == pytest.approx(0.05)
    assert [Look(number=n).alpha for n in (1, 2, 3)] == list(LOOK_ALPHAS)
    assert [Look(number=n).decides for n in (1, 3, 4)] == [True, True, False]


def test_all_checks_at_all_looks_fail_a_good_policy_in_at_most_five_percent():
    assert len(LOOK_ALPHAS) * sum(FAIL_ALPHAS.values()) <= 0.05


def test_holm_at_five_percent_rejects_whatever_the_checks_reject():
    """So no correction for their number is left to do."""
    checks = list(FAIL_ALPHAS)
    for failing in itertools.product([False, True], repeat=len(checks)):
        p = [FAIL_ALPHAS[check] if fails else 1.0 for check, fails in zip(checks, failing, strict=True)]
        assert holm(p, level=0.05) == list(failing)


@pytest.mark.parametrize(("number", "words"), [(1, "99 % bounds"), (2, "98.5 % upper bound, look 2"), (5, "97.5 %")])
def test_the_levels_are_shown(number, words):
    assert words in Look(number=number).bounds
