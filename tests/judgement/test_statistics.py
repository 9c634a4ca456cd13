"""Oracle: leave one group out by a loop, and the t distribution of scipy.stats."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from onepolicy.judgement.statistics import Estimate, estimate_ratio, prompts_needed


def jackknife_by_hand(sums, lengths):
    m = len(sums)
    without = [sum(np.delete(sums, i)) / sum(np.delete(lengths, i)) for i in range(m)]
    return math.sqrt((m - 1) / m * sum((x - sum(without) / m) ** 2 for x in without))


@st.composite
def groups(draw):
    m = draw(st.integers(2, 12))
    sums = draw(st.lists(st.floats(1e-6, 10), min_size=m, max_size=m))
    lengths = draw(st.lists(st.integers(1, 300), min_size=m, max_size=m))
    return np.array(sums), np.array(lengths, dtype=float)


@settings(max_examples=60, deadline=None)
@given(groups(), st.sampled_from([0.01, 0.05, 0.2]))
def test_the_bounds_are_those_of_a_jackknife_in_log_space(group, alpha):
    sums, lengths = group
    found = estimate_ratio(sums=sums, lengths=lengths, upper_alpha=alpha)
    value, error = sums.sum() / lengths.sum(), jackknife_by_hand(sums, lengths)
    effective = lengths.sum() ** 2 / (lengths**2).sum()
    assert found.value == pytest.approx(value, rel=1e-12)
    assert found.clusters == len(sums)
    assert found.effective_clusters == pytest.approx(effective, rel=1e-12)
    assert found.standard_error == pytest.approx(error, rel=1e-6, abs=1e-9 * value)
    below, above = (stats.t.ppf(1 - a, max(effective - 1, 1e-3)) * error / value for a in (0.01, alpha))
    if 1e-6 < max(below, above) < 30:
        assert found.low == pytest.approx(value * math.exp(-below), rel=1e-4)
        assert found.high == pytest.approx(value * math.exp(above + above**2 / 3), rel=1e-3)


def test_two_groups_of_which_one_has_nearly_all_tokens_have_an_infinite_bound_and_no_error():
    found = estimate_ratio(sums=np.array([1.0, 1.0]), lengths=np.array([1.0, 181.0]))
    assert (found.low, found.high) == (0.0, math.inf)


def test_groups_without_tokens_change_nothing():
    sums, lengths = np.array([1.0, 2.0, 4.0]), np.array([3.0, 5.0, 7.0])
    padded = estimate_ratio(sums=np.array([0, 1.0, 0, 2.0, 4.0]), lengths=np.array([0, 3.0, 0, 5.0, 7.0]))
    assert padded == estimate_ratio(sums=sums, lengths=lengths)


def test_the_unit_of_the_sums_is_the_unit_of_the_bounds():
    rng = np.random.default_rng(0)
    sums, lengths = rng.exponential(size=20), rng.integers(1, 50, 20).astype(float)
    plain, scaled = (estimate_ratio(sums=sums * k, lengths=lengths) for k in (1.0, 1e-9))
    for name in ("value", "low", "high", "standard_error"):
        assert getattr(scaled, name) == pytest.approx(getattr(plain, name) * 1e-9, rel=1e-9)


def test_one_group_has_a_value_and_no_bounds():
    found = estimate_ratio(sums=np.array([3.0]), lengths=np.array([6.0]))
    assert (found.value, found.clusters, found.effective_clusters) == (0.5, 1, 1.0)
    assert all(map(math.isnan, (found.low, found.high, found.standard_error)))


@pytest.mark.parametrize("lengths", [[], [0.0, 0.0]])
def test_nothing_is_nan_and_no_group(lengths):
    found = estimate_ratio(sums=np.zeros(len(lengths)), lengths=np.array(lengths))
    assert math.isnan(found.value)
    assert found.clusters == 0


def test_sums_of_zero_are_zero_on_both_ends():
    found = estimate_ratio(sums=np.zeros(20), lengths=np.ones(20))
    assert (found.value, found.low, found.high, found.standard_error) == (0.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_sum_that_is_no_number_is_neither_dropped_nor_given_bounds(bad):
    found = estimate_ratio(sums=np.array([1.0, bad, 1.0]), lengths=np.ones(3))
    assert found.value == pytest.approx(bad, nan_ok=True)
    assert math.isnan(found.high)
    assert found.clusters == 3


def test_sums_whose_squares_are_beyond_float64_still_have_an_error():
    found = estimate_ratio(sums=np.array([1e260, *[1.0] * 29]), lengths=np.ones(30))
    assert found.standard_error == pytest.approx(1e260 / 30, rel=1e-6)
    assert 0 < found.low < found.value < found.high


def false_passes(rng, draw, *, m=48, trials=3_000):
    """How often the upper bound lies below the true ratio, for gate sums drawn group by group."""
    lengths = np.maximum(rng.lognormal(4, 0.8, (trials, m)).round(), 1).clip(max=256)
    sums, truth = draw(rng, lengths)
    bounds = [estimate_ratio(sums=s, lengths=n).high for s, n in zip(sums, lengths, strict=True)]
    return np.mean(np.array(bounds) < truth)


def heavy_rollouts(rng, lengths):
    """Each group has a level of its own with a lognormal tail."""
    level = rng.lognormal(0, 1.0, lengths.shape)
    return level * lengths, math.exp(0.5)


def heavy_tokens(rng, lengths):
    """k3 of normal d with a level by group: a chi-squared sum times a lognormal level."""
    level = rng.lognormal(0, 0.7, lengths.shape)
    return level * rng.chisquare(lengths), math.exp(0.245)


def rare_spikes(rng, lengths):
    """One token in fifty is thirty times worse."""
    spikes = rng.binomial(lengths.astype(int), 0.02)
    return rng.chisquare(lengths) + 30.0 * spikes, 1.0 + 0.6


@pytest.mark.parametrize("family", [heavy_rollouts, heavy_tokens, rare_spikes])
def test_at_the_limit_at_most_one_in_twenty_passes_at_a_nominal_one_in_a_hundred(family):
    assert false_passes(np.random.default_rng(20_240_501), family) <= 0.05


def estimate(value, error, clusters=30):
    return Estimate(
        value=value, low=0.0, high=1.0, standard_error=error, clusters=clusters, effective_clusters=float(clusters)
    )


@pytest.mark.parametrize("limit", [1.5, 0.6])
def test_the_prompts_needed_put_the_bound_on_the_limit(limit):
    found = prompts_needed(estimate(1.0, 0.2), limit=limit)
    width = stats.t.ppf(0.99, 29) * 0.2 / math.sqrt(found / 30)
    assert math.exp(width + width**2 / 3 if limit > 1 else -width) == pytest.approx(limit)


def test_a_later_look_with_more_of_the_level_needs_fewer_prompts_to_pass_and_as_many_to_fail():
    first, third = (
        [prompts_needed(estimate(1.0, 0.2), limit=limit, upper_alpha=alpha) for limit in (1.5, 0.6)]
        for alpha in (0.01, 0.025)
    )
    assert third[0] < first[0]
    assert third[1] == first[1]


def test_a_value_on_the_limit_needs_infinitely_many_prompts_and_a_value_of_zero_none():
    assert prompts_needed(estimate(1.0, 0.2), limit=1.0) == math.inf
    assert prompts_needed(estimate(0.0, 0.0), limit=1.0) == 0.0
    assert prompts_needed(estimate(1.0, math.nan), limit=2.0) == math.inf
