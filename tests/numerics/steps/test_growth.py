"""Growth from step to step, against levels that change once."""

import math

import numpy as np
import pytest

from onepolicy.numerics.steps.growth import Growths
from onepolicy.numerics.steps.series import Point


def growth_of(values):
    growths = Growths()
    for step, value in enumerate(values, 1):
        growths.add(Point(step, math.log(value)))
    return growths.now()


def missed(steps, update):
    """k3 of a policy that misses one more update each step."""
    return [1e-3 * (1 + update * m * m) for m in range(steps)]


def test_nothing_is_said_before_nine_steps():
    assert growth_of([1e-3] * 8) is None
    assert growth_of([1e-3] * 9).total == pytest.approx(0)


@pytest.mark.parametrize("update", [0.05, 1.0, 30.0])
def test_missed_updates_rise_twice(update):
    growth = growth_of([1e-3] * 30 + missed(13, update))
    assert growth.rising
    assert growth.total > math.log(3)
    assert growth.floor == pytest.approx(1e-3)
    assert growth.floor_steps == (5, 34)


def test_growth_from_the_first_step_on_is_seen_against_the_first_steps():
    growth = growth_of(missed(9, 1.0))
    assert growth.rising
    assert growth.floor == pytest.approx(2e-3)
    assert growth.floor_steps == (1, 3)


@pytest.mark.parametrize("since", range(1, 10))
def test_another_level_rises_once(since):
    noise = np.exp(np.random.default_rng(since).normal(0, 0.05, 40))
    values = 1e-3 * noise * np.where(np.arange(40) >= 40 - since, 10.0, 1.0)
    assert not growth_of(values.tolist()).rising


def test_scatter_is_no_growth():
    for seed in range(200):
        values = 1e-3 * np.exp(np.random.default_rng(seed).normal(0, 0.3, 39))
        growth = growth_of(values.tolist())
        assert not (growth.rising and growth.total > math.log(3))
