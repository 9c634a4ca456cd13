import numpy as np
import pytest

from onepolicy.numerics.impact.groups import GroupSums, mean_over_groups


def test_the_interval_is_students_around_the_linearised_error():
    sums, weights = np.array([1.0, 4.0, 2.0, 9.0]), np.array([2.0, 4.0, 3.0, 6.0])
    found = mean_over_groups(sums, weights)
    ratio = 16 / 15
    error = np.sqrt(4 / 3 * sum((s - ratio * w) ** 2 for s, w in zip(sums, weights, strict=True))) / 15
    assert found.value == pytest.approx(ratio)
    assert found.high - found.value == pytest.approx(3.182446305284264 * error)  # t of 3 degrees, from a table
    assert found.value - found.low == pytest.approx(found.high - found.value)


def test_the_interval_holds_the_truth_in_95_of_100():
    rng = np.random.default_rng(1)
    held = 0
    for _ in range(2000):
        weights = rng.integers(50, 150, 30).astype(float)
        found = mean_over_groups(weights * 0.3 + np.sqrt(weights) * rng.standard_normal(30), weights)
        held += found.low <= 0.3 <= found.high
    assert 0.93 < held / 2000 < 0.97


def test_one_group_has_no_interval_and_none_no_mean():
    assert mean_over_groups(np.array([2.0]), np.array([4.0])).low is None
    assert mean_over_groups(np.zeros(0), np.zeros(0)) is None


def test_identical_rollouts_share_a_group_and_empty_ones_make_none(pair, rollout):
    rows = [
        rollout([-1.0], [-1.0], name="a", prompt="x", digest="same"),
        rollout([-1.0], [-1.0], name="b", prompt="y", digest="same"),
        rollout([], [], name="c", prompt="z"),
        rollout([-2.0], [-2.0], name="d", prompt="w"),
    ]
    groups = GroupSums(["tokens"])
    assert groups.places(pair(rows)).tolist() == [0, 0, -1, 1]
    assert len(groups) == 2
