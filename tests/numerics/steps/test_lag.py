"""Weights that are declared to fall behind."""

import pytest

from onepolicy.numerics.steps.lag import Lags, newest_lag


def said(declared_step, lags):
    watch = Lags()
    return [step for step, lag in enumerate(lags) if watch.add(declared_step(step, {lag: 100})) is not None]


def test_the_newest_weights_in_use_count_and_a_few_stray_tokens_do_not(declared_step):
    assert newest_lag(declared_step(1, {0: 2, 2: 50, 5: 48})) == 2
    assert newest_lag(declared_step(1, {0: 20, 2: 50, 5: 30})) == 0
    assert newest_lag(declared_step(1, {-1: 100})) is None


@pytest.mark.parametrize("usual", [0, 1, 4])
def test_a_lag_that_grows_beyond_the_usual_is_said(declared_step, usual):
    lags = [usual] * 20 + [usual + m for m in (1, 2, 3)]
    assert said(declared_step, lags) == [22]


def test_from_the_first_step_on_it_is_said_beyond_what_a_pipeline_fills(declared_step):
    assert said(declared_step, range(9)) == [8]
    assert said(declared_step, [0, 1, 2, 3, 4, *[5] * 40]) == []


def test_a_lag_that_comes_and_goes_is_not_said(declared_step):
    assert said(declared_step, [0, 1, 2, 3] * 20) == []
    assert said(declared_step, [1, 2, 1, 3, 1, 2] * 10) == []


def test_weights_that_were_far_apart_from_the_start_were_not_seen_to_fall_behind(declared_step):
    assert said(declared_step, [8] * 40) == []
    assert said(declared_step, [*range(5, 9), *[8] * 40]) != []
