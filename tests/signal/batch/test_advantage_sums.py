import numpy as np
import pytest

from onepolicy.records.verdict import Status

CHECK = "advantage_sums"
PROMPTS = np.tile(np.arange(4), 4)
"""p0, p1, p2, p3, p0, ...: interleaved"""


def centred(rewards, windows):
    """Rewards minus the mean of their window: [B] group numbers."""
    return np.array([r - rewards[windows == w].mean() for r, w in zip(rewards, windows, strict=True)])


@pytest.fixture
def rewards():
    """Prompts of different difficulty."""
    return np.random.default_rng(0).standard_normal(16) + 5 * PROMPTS


def test_windows_that_do_not_line_up_with_prompts_fail_and_are_told(sound, verdict, rewards):
    batch = sound(prompts=PROMPTS, rewards=rewards)
    found = verdict(CHECK, batch, advantages=centred(rewards, np.repeat(np.arange(4), 4)))
    assert (found.status, found.value) == (Status.FAIL, 4)
    assert "0 by position, not by id: over every 4 neighbouring rows" in found.message
    assert verdict(CHECK, batch, advantages=centred(rewards, PROMPTS)).status is Status.PASS


def test_strides_over_a_batch_in_order_fail_and_are_told(sound, verdict, rewards):
    ordered = np.sort(PROMPTS)
    found = verdict(CHECK, sound(prompts=ordered), advantages=centred(rewards, PROMPTS))
    assert found.status is Status.FAIL
    assert "over every 4th row" in found.message


def test_advantages_that_are_centred_over_the_batch_only_fail(sound, verdict, rewards):
    found = verdict(CHECK, sound(prompts=PROMPTS), advantages=rewards - rewards.mean())
    assert found.status is Status.FAIL
    assert "by position" not in found.message


def test_tokens_of_a_completion_share_its_advantage(sound, verdict, rewards):
    batch = sound(prompts=PROMPTS)
    wrong = centred(rewards, np.repeat(np.arange(4), 4))[:, None] * batch.loss_mask
    assert verdict(CHECK, batch, advantages=wrong).status is Status.FAIL
    assert verdict(CHECK, batch, advantages=wrong, loss_mask=None).status is Status.UNKNOWN


def test_advantages_of_tokens_are_of_no_group(sound, verdict):
    advantages = np.random.default_rng(1).standard_normal((16, 12))
    found = verdict(CHECK, sound(), advantages=advantages)
    assert (found.status, found.required) == (Status.UNKNOWN, False)
    assert "differ within a completion" in found.message


def test_advantages_that_are_not_relative_to_a_prompt_are_not_checked(sound, verdict, rewards):
    found = verdict(CHECK, sound(prompts=PROMPTS, group_relative=False), advantages=rewards)
    assert (found.status, found.required) == (Status.UNKNOWN, False)


def test_a_part_of_a_group_need_not_add_up(sound, verdict, rewards):
    prompts = np.array([0] * 4 + [1] * 4 + [2] * 4 + [3, 3, 4, 4])
    advantages = centred(rewards, prompts)
    advantages[12:] += 1.0
    batch = sound(prompts=prompts, advantages=advantages)
    assert verdict(CHECK, batch).status is Status.FAIL
    assert verdict(CHECK, batch, group_size=4).status is Status.PASS


def test_a_group_with_a_completion_that_is_left_out_is_not_judged(sound, verdict):
    batch = sound()
    mask = batch.loss_mask.copy()
    mask[3] = 0
    assert verdict(CHECK, batch, loss_mask=mask).status is Status.PASS


def test_a_group_of_one_with_an_advantage_fails(sound, verdict):
    found = verdict(CHECK, sound(prompts=np.arange(16), advantages=np.ones(16)))
    assert found.status is Status.FAIL
    assert "nothing to compare with" in found.message


def test_rounding_of_float32_rewards_far_from_0_adds_up(sound, verdict):
    rewards = (1000 + np.random.default_rng(2).standard_normal(16)).astype(np.float32)
    advantages = centred(rewards, PROMPTS).astype(np.float32)
    assert verdict(CHECK, sound(prompts=PROMPTS, advantages=advantages)).status is Status.PASS


def test_groups_that_are_all_0_add_up(sound, verdict):
    assert verdict(CHECK, sound(advantages=np.zeros(16))).status is Status.PASS
