import numpy as np
import pytest
from scipy import stats

from onepolicy.signal.reward.length_slope import interval


def test_the_interval_is_students():
    slopes = np.random.default_rng(3).normal(size=12)
    expected = stats.t.interval(0.95, 11, loc=slopes.mean(), scale=stats.sem(slopes))
    found = interval(slopes)
    assert (found.low, found.high) == pytest.approx(expected)


def test_the_interval_covers_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(4)
    covered = sum((found := interval(rng.normal(size=12))).low <= 0 <= found.high for _ in range(2000))
    assert 0.93 < covered / 2000 < 0.97
