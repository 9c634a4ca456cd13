"""A small version of benchmarks/interval.py: the bounds at the limit, where the truth is known."""

import math
from dataclasses import replace

import numpy as np
import pytest

from interval import PROMISED, families, rates

TRIALS = 3_000
FAMILIES = families()


@pytest.mark.parametrize("prompts", [24, 200])
@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.promised])
def test_a_policy_on_the_limit_seldom_passes_and_seldom_fails(name, prompts):
    false_pass, false_fail = rates(FAMILIES[name], prompts, TRIALS if prompts < 100 else TRIALS // 3)
    assert false_pass <= PROMISED
    assert false_fail <= PROMISED


def test_real_rollouts_are_among_the_families_that_are_promised():
    assert sum(family.promised for name, family in FAMILIES.items() if name.startswith("recorded")) == 4


@pytest.mark.parametrize(("factor", "side"), [(1.5, 0), (1 / 1.5, 1)])
def test_the_simulation_sees_a_bound_that_is_too_near(factor, side):
    wrong = FAMILIES["lognormal levels, sigma 0.5"]
    assert rates(replace(wrong, truth=wrong.truth * factor), 48, 300)[side] > 0.5


def test_the_mean_of_the_length_correlated_family_is_that_of_the_closed_form():
    """E[L exp(slope z)] / E[L] for a lognormal length L, exp(4.5 + 0.7 z); rounding lengths up moves it a little."""
    family = FAMILIES["the same, each token counting the same"]
    assert family.truth == pytest.approx(math.exp(((0.7 + 0.35) ** 2 - 0.7**2) / 2), rel=5e-3)


@pytest.mark.parametrize("name", [name for name in FAMILIES if "1.5" not in name])
def test_what_a_family_draws_has_its_mean(name):
    levels, weights = FAMILIES[name].draw(np.random.default_rng(0), (200, 1_000))
    assert (levels * weights).sum() / weights.sum() == pytest.approx(FAMILIES[name].truth, rel=0.02)
