"""An offset on every token against noise of the same size or larger."""

import numpy as np
import pytest

from onepolicy.judgement.limits import Limits
from onepolicy.numerics.legs.signed_mean import signed_mean
from onepolicy.records.verdict import Status


def rows(rollout, *, noise, offset=0.0, prompts=16, tokens=80, seed=0):
    rng = np.random.default_rng(seed)
    out = []
    for n in range(prompts):
        p = (-rng.exponential(1.0, tokens) - 0.5).astype(np.float32)
        d = noise * rng.standard_normal(tokens) + offset
        out.append(rollout(p, (p + d).astype(np.float32), name=f"r{n:02}"))
    return out


@pytest.mark.parametrize("noise", [0.0, 3e-6, 1e-5])
@pytest.mark.parametrize("offset", [1e-5, -1e-5])
def test_an_offset_of_1e_5_on_every_token_is_seen_under_the_noise_of_float32(rollout, measured, noise, offset):
    verdict = signed_mean(measured(rows(rollout, noise=noise, offset=offset)), Limits())
    assert verdict.status is Status.FAIL
    assert verdict.value == pytest.approx(offset, rel=0.2)
    assert "Rounding has no direction" in verdict.message


@pytest.mark.parametrize("noise", [0.0, 3e-6, 1e-3, 0.02, 0.1])
def test_noise_without_a_direction_passes_whatever_its_size(rollout, measured, noise):
    failed = [
        signed_mean(measured(rows(rollout, noise=noise, seed=seed)), Limits()).status is Status.FAIL
        for seed in range(40)
    ]
    assert sum(failed) == 0


def test_two_equal_columns_pass(rollout, measured):
    assert signed_mean(measured(rows(rollout, noise=0.0)), Limits()).status is Status.PASS


def test_one_prompt_has_no_error_and_nothing_is_decided(rollout, measured):
    verdict = signed_mean(measured(rows(rollout, noise=1e-6, prompts=1)), Limits())
    assert (verdict.status, verdict.required) == (Status.UNKNOWN, False)


def test_nothing_compared_is_no_pass(measured):
    assert signed_mean(measured([]), Limits()).status is Status.UNKNOWN
