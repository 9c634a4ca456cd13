import numpy as np
import pytest
from scipy import stats

from onepolicy.signal.reward.length_slope import interval, length_slope
from onepolicy.signal.reward.pairs import load_pairs
from onepolicy.signal.reward.subject import subject_of


def test_the_interval_is_students():
    slopes = np.random.default_rng(3).normal(size=12)
    expected = stats.t.interval(0.95, 11, loc=slopes.mean(), scale=stats.sem(slopes))
    found = interval(slopes)
    assert (found.low, found.high) == pytest.approx(expected)


def test_the_interval_covers_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(4)
    covered = sum((found := interval(rng.normal(size=12))).low <= 0 <= found.high for _ in range(2000))
    assert 0.93 < covered / 2000 < 0.97


def test_pairs_of_one_prompt_are_one_prompt(function):
    pairs = tuple(pair.model_copy(update={"messages": load_pairs(None)[0].messages}) for pair in load_pairs(None))
    found = length_slope(subject_of(function(), pairs))
    assert found.message.startswith("not checked: only 1 prompts differ")
