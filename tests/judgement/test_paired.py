"""The paired interval, against a jackknife that leaves each group out by hand."""

import math

import numpy as np
import pytest
from scipy import stats

from onepolicy.judgement.paired import paired_difference

RNG = np.random.default_rng(5)
LENGTHS = RNG.integers(5, 60, 20).astype(np.float64)
SUMS = RNG.normal(0.01, 0.05, 20) * LENGTHS


def test_the_ends_are_the_jackknife_over_groups_and_students_t():
    found = paired_difference(sums=SUMS, lengths=LENGTHS)
    without = [np.delete(SUMS, i).sum() / np.delete(LENGTHS, i).sum() for i in range(20)]
    error = math.sqrt(19 / 20 * sum((one - np.mean(without)) ** 2 for one in without))
    effective = LENGTHS.sum() ** 2 / (LENGTHS**2).sum()
    reach = stats.t.ppf(0.995, effective - 1) * error
    assert found.value == pytest.approx(SUMS.sum() / LENGTHS.sum(), rel=1e-12)
    assert (found.low, found.high) == pytest.approx((found.value - reach, found.value + reach), rel=1e-9)


def test_nothing_that_moved_is_exactly_zero_with_zero_ends():
    found = paired_difference(sums=np.zeros(20), lengths=LENGTHS)
    assert (found.value, found.low, found.high) == (0.0, 0.0, 0.0)


def test_a_shift_of_every_token_has_no_width():
    found = paired_difference(sums=1e-5 * LENGTHS, lengths=LENGTHS)
    assert found.low == pytest.approx(1e-5, rel=1e-9)
    assert found.high == pytest.approx(1e-5, rel=1e-9)


@pytest.mark.parametrize("lengths", [np.ones(11), np.array([1000.0] * 2 + [1.0] * 30), np.zeros(20), np.ones(0)])
def test_too_few_groups_have_no_ends(lengths):
    found = paired_difference(sums=0.1 * lengths, lengths=lengths)
    assert math.isnan(found.low)
    assert math.isnan(found.high)


def test_groups_without_a_token_do_not_count():
    padded = paired_difference(sums=np.append(SUMS, [0.0, 0.0]), lengths=np.append(LENGTHS, [0.0, 0.0]))
    assert padded == paired_difference(sums=SUMS, lengths=LENGTHS)


def test_by_chance_it_leaves_out_zero_in_about_one_case_of_a_hundred():
    rng = np.random.default_rng(1)
    cases = [paired_difference(sums=rng.normal(0, 1, 24) * 30, lengths=np.full(24, 30.0)) for _ in range(2000)]
    assert 0.003 <= np.mean([case.low > 0 or case.high < 0 for case in cases]) <= 0.02
