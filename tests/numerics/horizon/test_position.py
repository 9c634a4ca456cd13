"""Error by position."""

import numpy as np
import pytest

from onepolicy.numerics.horizon.position import by_position, growth
from onepolicy.numerics.horizon.sums import Cohort, HorizonSums


def added(rollout, pair, *, scale, prompts=16, length=128):
    """Rollouts whose d is normal, `scale(position)` wide."""
    rng = np.random.default_rng(1)
    width = np.array([scale(t) for t in range(length)])
    rows = [
        rollout(np.full(length, -3.0), -3.0 + rng.normal(0, width), name=f"r{i}", prompt=f"p{i}")
        for i in range(prompts)
    ]
    sums = HorizonSums(cohort=Cohort(length=length))
    sums.add(pair(rows))
    return sums


def test_a_mismatch_that_grows_is_seen_and_one_that_does_not_is_not(rollout, pair):
    grown = growth(added(rollout, pair, scale=lambda t: 0.05 if t < 64 else 0.1).positions)
    assert grown.low > 1
    assert grown.ratio == pytest.approx(4.0, rel=0.25)
    steady = growth(added(rollout, pair, scale=lambda t: 0.05).positions)
    assert steady.low < 1 < steady.high
    assert steady.ratio == pytest.approx(1.0, rel=0.2)
    fallen = growth(added(rollout, pair, scale=lambda t: 0.1 if t < 64 else 0.05).positions)
    assert fallen.high < 1


def test_the_interval_of_no_growth_holds_one(rollout, pair):
    rng = np.random.default_rng(2)
    inside = 0
    for _ in range(300):
        positions = np.zeros((16, 4, 4))
        positions[:, :, 0] = 32
        positions[:, :, 1] = rng.lognormal(0, 0.5, (16, 1)) * rng.gamma(16, 1 / 16, (16, 4))
        found = growth(positions)
        inside += found.low <= 1 <= found.high
    assert inside / 300 >= 0.98 - 3 * np.sqrt(0.98 * 0.02 / 300)


@pytest.mark.parametrize("prompts", [1, 11])
def test_too_few_prompts_say_nothing_of_growth(rollout, pair, prompts):
    assert growth(added(rollout, pair, scale=lambda t: 0.1, prompts=prompts).positions) is None


def test_equal_logprobs_and_short_cohorts_say_nothing_of_growth(rollout, pair):
    assert growth(added(rollout, pair, scale=lambda t: 0.0).positions) is None
    assert growth(added(rollout, pair, scale=lambda t: 0.1, length=32).positions) is None
    assert growth(HorizonSums(cohort=Cohort(length=0)).positions) is None


def test_the_table_has_the_same_rollouts_in_every_row(rollout, pair):
    sums = added(rollout, pair, scale=lambda t: 1e-3 * (t // 32 + 1))
    table = by_position(sums)
    assert [(one.start, one.end, one.tokens) for one in table] == [
        (0, 32, 512),
        (32, 64, 512),
        (64, 96, 512),
        (96, 128, 512),
    ]
    for row, one in enumerate(table, 1):
        assert one.mean_k3 == pytest.approx((1e-3 * row) ** 2 / 2, rel=0.3)
        assert one.mean_abs_d == pytest.approx(1e-3 * row * np.sqrt(2 / np.pi), rel=0.2)
