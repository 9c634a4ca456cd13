import numpy as np
import pytest

from onepolicy.records.verdict import Status

CHECK = "advantage_spread"


def test_advantages_that_were_lost_on_the_way_fail(sound, verdict):
    found = verdict(CHECK, sound(advantages=np.zeros((16, 12))))
    assert (found.status, found.value) == (Status.FAIL, 4)


def test_a_batch_without_a_difference_is_unknown_and_does_not_pass(sound, verdict):
    batch = sound(rewards=np.ones(16))
    for advantages in (np.zeros(16), None):
        found = verdict(CHECK, batch, advantages=advantages)
        assert (found.status, found.required) == (Status.UNKNOWN, True)
        assert "teaches nothing" in found.message


def test_all_zero_without_rewards_is_unknown(sound, verdict):
    found = verdict(CHECK, sound(rewards=None, advantages=np.zeros(16)))
    assert (found.status, found.required) == (Status.UNKNOWN, True)


def test_rounding_is_no_difference_of_rewards(sound, verdict):
    rewards = np.where(np.arange(16) % 2, 0.3, np.nextafter(0.3, 1)).astype(np.float64)
    assert verdict(CHECK, sound(rewards=rewards, advantages=np.zeros(16))).status is Status.UNKNOWN


def test_a_pass_says_how_many_prompts_teach(sound, verdict):
    batch = sound()
    rewards = np.where(batch.prompts == 0, 1.0, batch.rewards)
    assert "within 3 of 4 prompts" in verdict(CHECK, batch, rewards=rewards).message


def test_a_prompt_with_one_completion_is_not_counted(sound, verdict):
    prompts = np.where(np.arange(16) == 0, 9, 5)
    assert "within 1 of 1 prompts" in verdict(CHECK, sound(prompts=prompts)).message


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_an_advantage_in_the_loss_that_is_no_number_fails(sound, verdict, bad):
    batch = sound()
    advantages = batch.advantages.copy()
    advantages[6, 0] = bad
    found = verdict(CHECK, batch, advantages=advantages)
    assert (found.status, found.evidence[0].rollout_id) == (Status.FAIL, "row 6")


def test_what_padding_holds_is_no_advantage(sound, verdict):
    batch = sound()
    advantages = np.where(batch.loss_mask == 1, batch.advantages, np.nan)
    assert verdict(CHECK, batch, advantages=advantages).status is Status.PASS
    assert verdict(CHECK, batch, advantages=np.where(batch.loss_mask == 1, 0.0, 7.0)).status is Status.FAIL
