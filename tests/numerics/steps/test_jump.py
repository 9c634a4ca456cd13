"""A sudden change of the level."""

import math

import numpy as np
import pytest

from onepolicy.numerics.steps.jump import NEEDED_STEPS, SETTLE, Exactness, Jumps, forecast


def noise(n, seed=0, sd=0.1):
    return np.random.default_rng(seed).normal(math.log(1e-3), sd, n)


def found(values):
    jumps = Jumps()
    return [(step, jump) for step, value in enumerate(values) if (jump := jumps.add(float(value))) is not None]


def test_a_forecast_of_a_line_lies_on_it_and_outliers_do_not_move_it():
    line = 3.0 + 0.25 * np.arange(40)
    assert forecast(line, ahead=4) == pytest.approx(3.0 + 0.25 * 43)
    line[[3, 17, 30]] = 100.0
    assert forecast(line, ahead=4) == pytest.approx(3.0 + 0.25 * 43)


def test_a_threefold_level_is_found_within_three_steps_and_said_once():
    values = noise(160)
    values[100:] += math.log(3)
    [(step, jump)] = found(values)
    assert 100 <= step <= 102
    assert jump.factor == pytest.approx(3, rel=0.25)


def test_the_level_after_a_jump_is_the_new_history():
    values = noise(200)
    values[100:] += math.log(3)
    values[140:] += math.log(3)
    steps = [step for step, jump in found(values) if jump.factor > 1]
    assert len(steps) == 2
    assert 140 <= steps[1] <= 142


def test_a_fall_is_a_jump_below_one():
    values = noise(130)
    values[100:] -= math.log(3)
    [(_, jump)] = found(values)
    assert jump.factor == pytest.approx(1 / 3, rel=0.25)


def test_one_wild_step_is_no_jump():
    values = noise(130)
    values[100] += math.log(50)
    assert not found(values)


def test_slow_drift_is_no_jump():
    assert not found(noise(600) + np.linspace(0, math.log(100), 600))


@pytest.mark.parametrize("steps", [NEEDED_STEPS - 3, 12])
def test_with_too_little_history_nothing_is_said(steps):
    values = noise(steps + 10)
    values[steps - 1 :] += math.log(30)
    assert not [step for step, _ in found(values) if step < NEEDED_STEPS - 1]


def test_a_run_without_scatter_needs_a_change_by_half():
    still = np.full(160, math.log(1e-3))
    small, large = still.copy(), still.copy()
    small[100:] += math.log(1.4)
    large[100:] += math.log(1.6)
    assert not found(small)
    assert len(found(large)) == 1


def test_a_change_that_something_else_names_is_taken_for_the_level():
    values, jumps = noise(160), Jumps()
    values[100:] += math.log(5)
    for value in values[:100]:
        assert jumps.add(float(value)) is None
    jumps.settle()
    assert jumps.settling
    assert [jump for value in values[100:] if (jump := jumps.add(float(value)))] == []
    assert not jumps.settling
    assert SETTLE < 60


def test_steps_that_are_no_longer_equal_bit_by_bit_are_told_once():
    exact = Exactness()
    told = [exact.add(equal=step < 20) for step in range(30)]
    assert [(step, before) for step, before in enumerate(told) if before is not None] == [(22, 20)]


def test_steps_that_never_were_equal_are_not_told():
    exact = Exactness()
    assert not any(exact.add(equal=step % 4 == 0) for step in range(100))
