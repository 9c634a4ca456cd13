"""Oracle: two categorical distributions and draws from one of them."""

import numpy as np
import pytest

from onepolicy.records.verdict import Status

CHECK = "kl_sign"
P = np.array([0.5, 0.2, 0.15, 0.1, 0.05])
Q = np.array([0.15, 0.15, 0.2, 0.2, 0.3])


def drawn(seed, p=P, q=Q):
    ids = np.random.default_rng(seed).choice(5, (16, 12), p=P)
    return {"token_ids": ids, "rollout_logprobs": np.log(p)[ids], "reference_logprobs": np.log(q)[ids]}


def test_the_right_order_passes_and_says_the_mean(sound, verdict):
    changes = drawn(0)
    found = verdict(CHECK, sound(), **changes)
    assert found.status is Status.PASS
    mask = sound().loss_mask == 1
    k1 = (changes["rollout_logprobs"] - changes["reference_logprobs"])[mask]
    assert f"{k1.mean():.4g} nats" in found.message


def test_the_two_exchanged_fail(sound, verdict):
    found = verdict(CHECK, sound(), **drawn(0, p=Q, q=P))
    assert found.status is Status.FAIL
    assert found.value < 0


@pytest.mark.parametrize("nearness", [1e-3, 0.1, 1.0])
def test_the_right_order_fails_as_seldom_as_is_said(sound, verdict, nearness):
    q = P + nearness * (Q - P)
    assert all(verdict(CHECK, sound(), **drawn(seed, q=q)).status is Status.PASS for seed in range(60))


def test_the_reference_itself_passes(sound, verdict):
    found = verdict(CHECK, sound(), **drawn(1, q=P))
    assert found.status is Status.PASS
    assert "policy minus reference is 0 nats" in found.message


def test_noise_of_two_engines_of_one_policy_passes(sound, verdict):
    changes = drawn(2, q=P)
    changes["reference_logprobs"] = changes["rollout_logprobs"] + 0.02 * np.random.default_rng(0).standard_normal(
        (16, 12)
    )
    assert verdict(CHECK, sound(), **changes).status is Status.PASS


def test_a_thousandth_of_a_nat_between_two_engines_does_not_add_up_to_a_failure(sound, verdict):
    rollout = np.full((16, 1000), -1.0)
    batch = sound(value_token_ids=None, value_attention_mask=None, advantages=None, attention_mask=None)
    shaped = {"token_ids": np.ones((16, 1000), dtype=int), "loss_mask": np.ones((16, 1000))}
    lengths = {"lengths": np.full(16, 1000), "rollout_logprobs": rollout}
    near, far = (verdict(CHECK, batch, **shaped, **lengths, reference_logprobs=rollout + by) for by in (9e-4, 2e-3))
    assert (near.status, far.status) == (Status.PASS, Status.FAIL)


def test_what_padding_holds_does_not_count(sound, verdict):
    changes = drawn(0)
    outside = sound().loss_mask == 0
    changes["reference_logprobs"] = np.where(outside, 1e6, changes["reference_logprobs"])
    assert verdict(CHECK, sound(), **changes).status is Status.PASS


def test_a_sampled_token_without_a_logprob_is_unknown(sound, verdict):
    changes = drawn(0)
    changes["reference_logprobs"][0, 0] = -np.inf
    found = verdict(CHECK, sound(), **changes)
    assert (found.status, found.required) == (Status.UNKNOWN, True)
