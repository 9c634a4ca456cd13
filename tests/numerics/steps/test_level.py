"""The level against the limit, looked at after every step."""

import math

import pytest
from scipy import stats

from onepolicy.numerics.steps.level import LOOK_ALPHA, Levels, step_interval


def levels(step_of, *k3s, **changes):
    found = Levels()
    for step, k3 in enumerate(k3s, 1):
        found.add(step_of(step, k3, **changes))
    return found


def test_a_look_is_about_1_7_times_as_wide_as_one_at_1_percent():
    assert stats.norm.isf(LOOK_ALPHA) / stats.norm.isf(0.01) == pytest.approx(1.7, abs=0.01)


def test_the_bounds_of_one_step_are_students_over_prompts(step_of):
    level = levels(step_of, 2e-3, error=0.1, prompts=16).over(1)
    exponent = stats.t.isf(LOOK_ALPHA, 15) * 0.1
    assert level.low == pytest.approx(2e-3 * math.exp(-exponent))
    assert level.high == pytest.approx(2e-3 * math.exp(exponent))


def test_several_steps_share_their_errors(step_of):
    level = levels(step_of, 2e-3, 2e-3, 2e-3, 2e-3, error=0.1, prompts=16).over(4)
    assert level.tokens == 4000
    assert level.low == pytest.approx(2e-3 * math.exp(-stats.t.isf(LOOK_ALPHA, 60) * 0.05))


def test_steps_that_scatter_more_than_their_prompts_do_widen_the_interval(step_of):
    quiet, wild = levels(step_of, *[1e-3] * 16), levels(step_of, *[5e-4, 1.5e-3] * 8)
    assert wild.over(16).value == pytest.approx(quiet.over(16).value)
    assert wild.over(16).low < quiet.over(16).low / 1.2


def test_a_step_far_beyond_says_so_at_once_and_a_small_excess_after_some_steps(step_of):
    assert levels(step_of, 4e-3, error=0.1).beyond(1e-3).steps == 1
    assert levels(step_of, *[1.15e-3] * 4, error=0.1).beyond(1e-3) is None
    assert levels(step_of, *[1.15e-3] * 16, error=0.1).beyond(1e-3).steps == 16


def test_what_lies_within_never_does(step_of):
    assert levels(step_of, *[9e-4] * 64).beyond(1e-3) is None


def test_few_prompts_say_nothing_alone_and_enough_together(step_of):
    assert levels(step_of, 5e-3, prompts=4).beyond(1e-3) is None
    assert levels(step_of, *[5e-3] * 4, prompts=4).beyond(1e-3).steps == 4


def test_without_an_error_over_prompts_the_scatter_of_steps_speaks(step_of):
    assert levels(step_of, *[5e-3] * 4, standard_error=None).beyond(1e-3) is None
    assert levels(step_of, *[5e-3, 5.1e-3] * 8, standard_error=None).beyond(1e-3).steps == 16


def test_an_infinite_mean_is_beyond_every_limit(step_of):
    found = levels(step_of, math.inf, metrics={}, standard_error=None).beyond(1e9)
    assert found.low == math.inf


def test_equal_sides_are_within_every_limit(step_of):
    level = levels(step_of, 0.0).over(1)
    assert (level.low, level.value, level.high) == (0.0, 0.0, 0.0)


def test_an_error_of_all_tokens_is_wider_for_those_of_the_same_version_alone(step_of):
    record = step_of(1, 1e-3, error=0.1, valid=4000)
    value, low, high = step_interval(record)
    assert value == pytest.approx(1e-3)
    assert low == pytest.approx(1e-3 * math.exp(-stats.t.isf(0.01, 15) * 0.2))
    assert high == pytest.approx(1e-3 * math.exp(stats.t.isf(0.01, 15) * 0.2))


def test_a_step_without_a_same_version_token_has_no_interval(declared_step):
    assert step_interval(declared_step(1, {2: 50})) is None
