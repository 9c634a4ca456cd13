"""k3 standardised by confidence: what moves it and what does not."""

import math

import pytest

from onepolicy.numerics.steps.series import REFERENCE_STEPS, Standardised, declared_stale, sums

RATES = (4e-3, 1e-3, 1e-5)


def mix(*tokens, times=1.0):
    return [(n, n * rate * times) for n, rate in zip(tokens, RATES, strict=True)]


def values_of(step_of, *cells):
    series = Standardised()
    return [p for step, c in enumerate(cells, 1) for p in series.add(step_of(step, cells=c))]


def test_the_first_steps_come_together_once_they_are_there(step_of):
    series = Standardised()
    lengths = [len(series.add(step_of(step))) for step in range(1, REFERENCE_STEPS + 2)]
    assert lengths == [0, 0, 0, REFERENCE_STEPS, 1]


def test_a_policy_that_grows_confident_does_not_move_the_series(step_of):
    first = [mix(300, 300, 400)] * REFERENCE_STEPS
    points = values_of(step_of, *first, mix(20, 80, 900), mix(1, 1, 998))
    plain = math.log(300 * 4e-3 + 300 * 1e-3 + 400 * 1e-5) - math.log(1000)
    assert [p.log_k3 for p in points] == pytest.approx([plain] * 6, rel=1e-12)


def test_an_engine_that_is_three_times_as_far_off_moves_it_by_the_logarithm_of_three(step_of):
    first = [mix(300, 300, 400)] * REFERENCE_STEPS
    points = values_of(step_of, *first, mix(20, 80, 900, times=3))
    assert points[-1].log_k3 - points[0].log_k3 == pytest.approx(math.log(3), rel=1e-12)


def test_a_bucket_that_is_empty_now_is_in_neither_sum(step_of):
    first = [mix(300, 300, 400)] * REFERENCE_STEPS
    points = values_of(step_of, *first, mix(0, 500, 500))
    assert points[-1].log_k3 == pytest.approx(points[0].log_k3, rel=1e-12)


def test_tokens_of_a_bucket_without_an_expectation_are_left_out(step_of):
    first = [mix(0, 500, 500)] * REFERENCE_STEPS
    points = values_of(step_of, *first, [(500, 500 * 7.0), (250, 250 * 1e-3), (250, 250 * 1e-5)])
    assert points[-1].log_k3 == pytest.approx(points[0].log_k3, rel=1e-12)


def test_a_step_without_a_token_of_the_same_version_has_no_point(step_of, declared_step):
    series = Standardised()
    steps = [step_of(1), declared_step(2, {3: 100}), step_of(3), step_of(4), step_of(5)]
    assert [p.step for record in steps for p in series.add(record)] == [1, 3, 4, 5]


def test_equal_sides_are_minus_infinity_and_the_first_unequal_step_has_its_own_mean(step_of):
    points = values_of(step_of, *[[(100, 0.0)]] * REFERENCE_STEPS, [(100, 0.5)])
    assert [p.log_k3 for p in points[:-1]] == [-math.inf] * REFERENCE_STEPS
    assert points[-1].log_k3 == pytest.approx(math.log(5e-3))


def test_an_infinite_sum_has_no_point(step_of):
    first = [mix(300, 300, 400)] * REFERENCE_STEPS
    assert len(values_of(step_of, *first, [(10, math.inf), (1, 1.0), (1, 1.0)])) == REFERENCE_STEPS


def test_without_cells_by_confidence_the_lags_say_which_tokens_are_of_the_same_version(declared_step):
    record = declared_step(1, {0: 60, 1: 30, -1: 10}, k3=0.5).model_copy(update={"by_confidence": ()})
    assert sums(record) == (70, 35.0)
    assert declared_stale(record) == 30
