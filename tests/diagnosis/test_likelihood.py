"""The judge of corrections, against scipy's Student-t and simulated faults."""

from dataclasses import replace

import numpy as np
import pytest
from planted_difference import LENGTH, NOISE, PROMPTS, SCALE, noise, offset, tokens_of
from scipy import stats

from onepolicy.diagnosis.likelihood import IMPOSSIBLE, Trial, log_density, ratio_error


def test_the_density_is_that_of_a_student_t_with_4_degrees_of_freedom():
    d, scale = np.linspace(-3, 3, 41), np.geomspace(1e-6, 10, 41)
    np.testing.assert_allclose(log_density(d, scale), stats.t.logpdf(d, df=4, scale=scale), rtol=1e-12)


def test_the_mean_absolute_value_of_the_density_is_its_scale():
    assert stats.t.expect(abs, args=(4,), scale=0.3) == pytest.approx(0.3)


@pytest.mark.parametrize("bad", [-np.inf, np.nan])
def test_a_token_that_cannot_have_been_sampled_counts_as_far_apart(bad):
    assert log_density(np.array([bad]), np.array([1.0])) == log_density(np.array([IMPOSSIBLE]), np.array([1.0]))


def test_the_error_of_a_ratio_is_that_of_a_bootstrap_over_prompts():
    rng = np.random.default_rng(0)
    weights = rng.integers(20, 60, 200).astype(float)
    sums = weights * rng.normal(0.5, 0.1, 200)
    drawn = rng.integers(0, 200, (4000, 200))
    bootstrap = (sums[drawn].sum(axis=1) / weights[drawn].sum(axis=1)).std()
    assert ratio_error(sums, weights) == pytest.approx(bootstrap, rel=0.08)


def test_one_prompt_has_no_error():
    assert ratio_error(np.array([1.0, 0.0]), np.array([3.0, 0.0])) == np.inf


def test_what_a_correction_may_be_wrong_by_counts_as_noise_under_it():
    tokens = tokens_of(noise() + 0.5)
    plain = offset(tokens, values=(0.5,))
    vague = replace(plain, scale=lambda value, known: known + 0.1)
    exact, inexact = (Trial(tokens, NOISE).of(family) for family in (plain, vague))
    assert inexact.noise == pytest.approx(exact.noise + 0.1 * len(tokens))
    assert inexact.gain < exact.gain


@pytest.mark.parametrize("planted", [0.037, -0.11, 0.2])
def test_a_planted_parameter_is_found_with_an_error_that_covers_it(planted):
    tokens = tokens_of(noise() + planted)
    tried = Trial(tokens, NOISE).of(offset(tokens))
    assert tried.value == pytest.approx(planted, abs=4 * tried.value_error)
    assert 0 < tried.value_error < SCALE
    assert tried.stability < SCALE
    assert tried.z > 10


def test_the_error_of_a_parameter_is_its_spread_over_repetitions():
    found = []
    for seed in range(40):
        tokens = tokens_of(noise(seed) + 0.05)
        found.append(Trial(tokens, NOISE).of(offset(tokens)))
    spread = np.std([one.value for one in found])
    assert np.mean([one.value_error for one in found]) == pytest.approx(spread, rel=0.4)


def test_noise_alone_gains_nothing_in_nearly_all_of_many_repetitions():
    alarms = 0
    for seed in range(60):
        tokens = tokens_of(noise(seed))
        tried = Trial(tokens, NOISE, candidates=20).of(offset(tokens))
        alarms += tried.gain > 0 and tried.z > 1.645
    assert alarms <= 3


def test_what_is_held_out_is_never_fitted_on():
    """Each prompt has an offset of its own, drawn anew: no offset of others helps it, whatever the fit says."""
    own = np.repeat(np.random.default_rng(3).normal(0, 0.1, PROMPTS), LENGTH)
    tokens = tokens_of(own + noise())
    tried = Trial(tokens, NOISE).of(offset(tokens))
    assert tried.gain < 4 * tried.gain_error


def test_impossible_tokens_are_counted():
    tokens = tokens_of(noise())
    after = tokens.d.copy()
    after[:12] = -np.inf
    tried = Trial(tokens, NOISE).of(offset(tokens, values=(0.0,), corrected=lambda _: after, is_continuous=False))
    assert tried.impossible == 12 / len(tokens)
    assert tried.gain < 0
