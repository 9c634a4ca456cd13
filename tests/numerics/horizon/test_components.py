"""The analysis of variance against scipy's, against hand-made numbers, and on drawn data."""

import math

import numpy as np
import pytest
from scipy.stats import f_oneway

from onepolicy.numerics.horizon.components import components
from onepolicy.numerics.horizon.sums import rollout_sums


def summed(rollouts):
    offsets = np.cumsum([0, *map(len, rollouts)])
    return rollout_sums(np.concatenate(rollouts), offsets)


@pytest.mark.parametrize("lengths", [[64] * 5, [64, 96, 320, 64], [32, 64, 640]])
def test_f_and_p_are_those_of_scipy_over_the_blocks_means(lengths):
    rng = np.random.default_rng(3)
    rollouts = [rng.normal(rng.normal(0, 0.02), 0.1, n) for n in lengths]
    found = components(summed(rollouts), "d")
    oracle = f_oneway(*(r.reshape(-1, 32).mean(axis=1) for r in rollouts))
    assert found.f == pytest.approx(oracle.statistic, rel=1e-9)
    assert found.p == pytest.approx(oracle.pvalue, rel=1e-7)
    assert (found.rollouts, found.blocks) == (len(lengths), sum(lengths) // 32)


def test_the_excess_is_tested_likewise():
    rng = np.random.default_rng(4)
    rollouts = [rng.normal(0, 0.3, 96) for _ in range(6)]
    oracle = f_oneway(*(np.expm1(r).reshape(-1, 32).mean(axis=1) for r in rollouts))
    assert components(summed(rollouts), "excess").p == pytest.approx(oracle.pvalue, rel=1e-7)


def test_the_parts_are_unbiased_also_with_unequal_lengths():
    rng = np.random.default_rng(5)
    found = []
    for _ in range(400):
        lengths = rng.integers(2, 13, 20) * 32
        rollouts = [rng.normal(rng.normal(0, 0.03), 0.1, n) for n in lengths]
        found.append(components(summed(rollouts), "d"))
    persistent = np.array([one.persistent for one in found])
    per_token = np.array([one.per_token for one in found])
    assert persistent.mean() == pytest.approx(0.03**2, abs=4 * persistent.std() / 20)
    assert per_token.mean() == pytest.approx(0.1**2, abs=4 * per_token.std() / 20)


def test_the_interval_holds_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(6)
    inside = 0
    for _ in range(400):
        rollouts = [rng.normal(rng.normal(0, 0.02), 0.1, 256) for _ in range(24)]
        found = components(summed(rollouts), "d")
        inside += found.low <= 0.02**2 <= found.high
    assert inside / 400 >= 0.98 - 3 * math.sqrt(0.98 * 0.02 / 400)


def test_without_a_bias_the_estimate_lies_on_both_sides_of_none():
    rng = np.random.default_rng(8)
    found = [components(summed(list(rng.normal(0, 0.1, (12, 128)))), "d").persistent for _ in range(100)]
    assert 20 < sum(one < 0 for one in found) < 80


def test_equal_logprobs_have_no_variance_and_no_bias():
    found = components(summed([np.zeros(64)] * 4), "d")
    assert (found.per_token, found.persistent, found.low, found.high, found.f, found.p) == (0, 0, 0, 0, 1, 1)


def test_a_constant_of_each_rollout_is_certain():
    found = components(summed([np.full(64, x) for x in (0.1, 0.2, 0.3)]), "d")
    assert found.f == math.inf
    assert found.p == 0.0
    assert found.per_token == 0.0
    assert found.persistent == pytest.approx(0.01)


@pytest.mark.parametrize("lengths", [[96], [32, 32, 32], [31, 40], [5, 6]])
def test_nothing_is_said_of_one_rollout_or_of_one_block_each(lengths):
    assert components(summed([np.linspace(-1, 1, n) for n in lengths]), "d") is None
