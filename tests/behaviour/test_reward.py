"""The interval against its formula written out, agreement against enumeration."""

import itertools
import math
import statistics

import numpy as np
import pytest
import scipy.stats

from onepolicy.behaviour.reward import outcome_agreement, reward_difference


@pytest.fixture
def pairs(pair):
    rng = np.random.default_rng(2)
    return [pair(f"p{i}", "reward", *(rng.integers(0, 2, (2, 3)).astype(float).tolist())) for i in range(15)]


def test_the_interval_is_students_with_two_prompts_counted_in(pairs):
    found = reward_difference(pairs)
    differences = [statistics.mean(o.reward for o in p.b) - statistics.mean(o.reward for o in p.a) for p in pairs]
    error = statistics.stdev([*differences, 1.0, -1.0]) / math.sqrt(17)
    half = float(scipy.stats.t.ppf(0.95, 14)) * error
    middle = statistics.mean(differences)
    assert found.difference == pytest.approx(middle)
    assert (found.low, found.high) == pytest.approx((middle - half, middle + half))


def test_prompts_that_are_all_equal_still_have_an_interval(pair):
    few = reward_difference([pair(f"p{i}", "reward", [float(i % 2)], [float(i % 2)]) for i in range(12)])
    many = reward_difference([pair(f"p{i}", "reward", [float(i % 2)], [float(i % 2)]) for i in range(60)])
    assert few.high > 0.05 > many.high > 0.0


def test_rewards_that_are_all_the_same_bound_nothing(pair):
    found = reward_difference([pair(f"p{i}", "reward", [0.0], [0.0]) for i in range(60)])
    assert (found.low, found.high, found.prompts_needed(0.05)) == (-math.inf, math.inf, math.inf)


def test_a_scale_of_the_reward_scales_the_interval(pair):
    small = reward_difference([pair(f"p{i}", "reward", [0.0, 0.1], [0.1, 0.1 * (i % 2)]) for i in range(12)])
    large = reward_difference([pair(f"p{i}", "reward", [0.0, 10.0], [10.0, 10.0 * (i % 2)]) for i in range(12)])
    assert (large.low, large.high) == pytest.approx((100 * small.low, 100 * small.high))


def test_so_many_prompts_would_decide(pair):
    """Prompts of the same kind, as many as it says, end within the margin."""

    def of(count):
        return reward_difference(
            [pair(f"p{i}", "reward", [float(i % 3 == 0)], [float(i % 3 == 1)]) for i in range(count)]
        )

    needed = of(30).prompts_needed(0.05)
    assert of(30).high > 0.05
    assert of(3 * math.ceil(needed / 3 * 1.05)).high < 0.05


def test_a_difference_on_the_margin_needs_infinitely_many(pair):
    found = reward_difference([pair(f"p{i}", "reward", [0.0], [0.5 if i < 2 else 0.0]) for i in range(20)])
    assert found.prompts_needed(found.difference) == math.inf


def test_agreement_is_over_all_pairs_of_samples(pairs):
    found = outcome_agreement(pairs, success=0.5)
    across = np.mean([np.mean([x.reward == y.reward for x in p.a for y in p.b]) for p in pairs])
    within = np.mean([np.mean([x.reward == y.reward for x, y in itertools.combinations(p.a, 2)]) for p in pairs])
    assert found.across == pytest.approx(across)
    assert found.within_a == pytest.approx(within)


def test_a_prompt_that_turns_altogether_is_named_and_one_that_turns_in_part_is_not(pair):
    pairs = [pair("lost", "reward", [1.0, 1.0], [0.0, 0.2]), pair("part", "reward", [1.0, 1.0], [0.0, 1.0])]
    pairs.append(pair("won", "reward", [0.0, 0.4], [0.5, 0.9]))
    found = outcome_agreement(pairs, success=0.5)
    assert found.turned == (("lost", False), ("won", True))


def test_one_sample_of_each_prompt_has_no_agreement_with_itself(pair):
    found = outcome_agreement([pair("p", "reward", [1.0], [1.0]), pair("q", "reward", [0.0], [1.0])], success=0.5)
    assert found.across == 0.5
    assert math.isnan(found.within_a)
