import numpy as np
import pytest
import torch

from onepolicy.records.verdict import Status

CHECK = "reward_values"
RNG = np.random.default_rng(5)
SCORES = (3 * RNG.standard_normal(16)).astype(np.float32)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_reward_that_is_no_number_fails(sound, verdict, bad):
    rewards = SCORES.copy()
    rewards[[4, 9]] = bad
    found = verdict(CHECK, sound(rewards=rewards))
    assert (found.status, found.value, found.evidence[0].rollout_id) == (Status.FAIL, 2, "row 4")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_fails_and_says_the_smallest_difference(sound, verdict, dtype):
    found = verdict(CHECK, sound(rewards=torch.from_numpy(SCORES).to(dtype)))
    assert found.status is Status.FAIL
    # the largest score lies between 4 and 8: bfloat16 has 7 bits after its first, float16 has 10
    assert 4 < np.abs(SCORES).max() < 8
    assert found.value == (2.0**-5 if dtype is torch.bfloat16 else 2.0**-8)


def test_float16_arrays_fail(sound, verdict):
    assert verdict(CHECK, sound(rewards=SCORES.astype(np.float16))).status is Status.FAIL


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rewards_that_were_rounded_before_fail_though_they_come_in_float32(sound, verdict, dtype):
    found = verdict(CHECK, sound(rewards=torch.from_numpy(SCORES).to(dtype).float()))
    assert found.status is Status.FAIL
    assert f"rounded to {str(dtype).removeprefix('torch.')} before" in found.message


@pytest.mark.parametrize(
    "rewards",
    [
        np.tile([0.0, 1.0], 8),
        np.arange(16.0),
        np.arange(240.0, 256.0),
        np.arange(16.0) / 4 - 2,
        -np.arange(16.0),
        np.array([100.0, 1 / 128] * 8),
        np.array([1000.5, 0.25, 1e-3, 1.0] * 4),
        np.arange(16) * 0.1,
        np.array([129 / 128, 129 / 65536] * 8),
        np.arange(1000.0, 1016.0),
        np.zeros(16),
    ],
)
def test_ones_counts_and_quarters_of_a_point_are_no_rounding(sound, verdict, rewards):
    for values in (rewards, rewards.astype(np.float32)):
        assert verdict(CHECK, sound(rewards=values)).status is Status.PASS


def test_whole_numbers_are_rewards(sound, verdict):
    assert verdict(CHECK, sound(rewards=np.tile([0, 1], 8))).status is Status.PASS
    assert verdict(CHECK, sound(rewards=np.tile([True, False], 8))).status is Status.PASS


def test_scores_of_float32_are_never_called_rounded(sound, verdict):
    rng = np.random.default_rng(0)
    for _ in range(50):
        rewards = (10 ** rng.uniform(-3, 3) * rng.standard_normal(16)).astype(np.float32)
        assert verdict(CHECK, sound(rewards=rewards)).status is Status.PASS
