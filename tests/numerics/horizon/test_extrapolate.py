"""The share outside the band against drawn sums, and its interval."""

import math

import numpy as np
import pytest

from horizon import Family, run_of, true_share
from onepolicy.numerics.horizon.drift import drift
from onepolicy.numerics.horizon.extrapolate import extrapolate, outside

BAND = (0.5, 2.0)


@pytest.mark.parametrize(("kl", "omega", "tokens"), [(1e-3, 0.0, 384), (1e-3, 0.002, 2048), (1e-5, 0.0, 384)])
def test_the_share_is_that_of_drawn_sums(kl, omega, tokens):
    rng = np.random.default_rng(1)
    bias = rng.normal(0, omega, 400_000) * tokens
    sums = -kl * tokens + bias + rng.normal(0, math.sqrt(2 * kl * tokens), 400_000)
    drawn = np.mean((np.exp(sums) < 0.5) | (np.exp(sums) > 2.0))
    said = outside(np.float64(kl), np.float64(2 * kl), np.float64(omega**2), tokens=tokens, band=BAND)
    assert said == pytest.approx(drawn, abs=4 * math.sqrt(max(drawn * (1 - drawn), 1e-5) / 400_000))


def test_drift_and_spread_are_equal_at_two_over_kl():
    found = extrapolate(run_of(np.random.default_rng(0), Family(prompts=200)).groups, 2000, BAND)
    assert -found.mean / found.chance == pytest.approx(1.0, rel=0.1)


def test_no_mismatch_is_never_outside():
    family = Family(kl=0.0)
    found = extrapolate(run_of(np.random.default_rng(0), family).groups, 4096, BAND)
    assert (found.mean, found.chance, found.persistent, found.outside, found.low, found.high) == (0, 0, 0, 0, 0, 0)


def test_a_run_has_one_interval_however_often_it_is_asked():
    groups = run_of(np.random.default_rng(2), Family()).groups
    assert extrapolate(groups, 1024, BAND) == extrapolate(groups, 1024, BAND)


def test_the_interval_widens_with_the_horizon_and_narrows_with_prompts():
    few, many = (run_of(np.random.default_rng(3), Family(prompts=m, kl=1e-4)).groups for m in (24, 600))
    near, far = extrapolate(few, 384, BAND), extrapolate(few, 3072, BAND)
    assert far.high - far.low > near.high - near.low
    assert extrapolate(many, 3072, BAND).high < far.high


def test_the_truth_of_the_benchmark_is_that_of_drawn_tokens():
    """What the benchmark holds the interval against takes a sum of tokens as normal; here the tokens are drawn."""
    family = Family(kl_spread=0.5, tail=1.0, bias=0.002, kl=2e-3)
    rng = np.random.default_rng(9)
    sums = []
    for _ in range(4000):
        v = 2 * family.kl * np.exp(rng.normal(-0.125, 0.5)) * np.exp(rng.normal(-0.5, 1.0, 256))
        sums.append(rng.normal(-v / 2, np.sqrt(v)).sum() + rng.normal(0, family.bias) * 256)
    drawn = np.mean(np.abs(sums) > math.log(2))
    assert true_share(family, 256) == pytest.approx(drawn, abs=4 * math.sqrt(drawn * (1 - drawn) / 4000))


def test_the_drift_is_the_mean_ratio_less_one():
    groups = run_of(np.random.default_rng(4), Family(offset=0.01, prompts=100)).groups
    found = drift(groups, missing=0.0)
    assert found.beyond == pytest.approx(math.expm1(0.01), abs=4 * found.standard_error)
    assert found.beyond > found.high
    assert found.expected == pytest.approx(-1e-3, rel=0.2)


def test_missing_tokens_widen_what_is_compatible_with_no_drift():
    groups = run_of(np.random.default_rng(4), Family()).groups
    assert drift(groups, missing=0.01).high == pytest.approx(drift(groups, missing=0.0).high + 0.01)
