import numpy as np

from onepolicy.numerics.impact.advantages import group_advantages


def test_the_sign_is_that_of_the_reward_less_its_groups_mean():
    found = group_advantages(np.array([1.0, 0.0, 0.0, 5.0, 4.0, 4.5]), ["a", "a", "a", "b", "b", "b"])
    assert found.signs.tolist() == [1, -1, -1, 1, -1, 0]
    assert found.correct.tolist() == [True, False, False, True, True, True]
    assert found.rewarded
    assert found.complete


def test_equal_rewards_and_single_rollouts_have_no_advantage():
    found = group_advantages(np.array([0.1, 0.1, 0.1, 7.0]), ["a", "a", "a", "b"])
    assert found.signs.tolist() == [0, 0, 0, 0]


def test_a_group_with_a_missing_reward_has_no_signs():
    found = group_advantages(np.array([1.0, np.nan, 1.0, 0.0]), ["a", "a", "b", "b"])
    assert found.signs.tolist() == [2, 2, 1, -1]
    assert found.rewarded
    assert not found.complete


def test_without_rewards_nothing_is_rewarded():
    found = group_advantages(np.full(3, np.nan), ["a", "a", "b"])
    assert not found.rewarded
    assert not found.correct.any()
    assert not group_advantages(np.zeros(0), []).complete
