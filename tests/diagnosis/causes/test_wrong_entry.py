"""The most likely token's logprob in place of the sampled one's."""

from dataclasses import replace

import pytest
from causes.planted import at, draw, log_softmax, other_weights, plain, proofs, situation, tokens_of, top_k, with_p

from onepolicy.diagnosis.causes import wrong_entry


def of_the_first(sigma=0.01):
    """The rollout side's own most likely token at each step, by enumeration."""
    tokens = tokens_of(sigma=sigma)
    return with_p(tokens, log_softmax(draw(sigma=sigma)[1]).max(axis=1))


@pytest.mark.parametrize("sigma", [0.01, 0.05])
def test_the_first_ones_value_is_known_again(sigma):
    proof = wrong_entry.proof(of_the_first(sigma), situation(sigma=sigma))
    assert proof.label == "the rollout side has the most likely token's logprob where another one was drawn"
    assert proof.is_decisive


def test_it_is_found_on_the_trainer_side_as_well():
    tokens = of_the_first()
    other = replace(tokens, p=tokens.q, q=tokens.p, rollout_statistics=tokens.trainer_statistics, trainer_statistics={})
    assert wrong_entry.proof(other, situation()).label.startswith("the trainer side")


@pytest.mark.parametrize("rollout", [plain, at(0.7), top_k(20)], ids=["noise", "temperature", "top-k"])
def test_the_right_entry_is_none_whatever_else_is_wrong(rollout):
    assert not proofs(tokens_of(rollout, seed=2), situation())


def test_other_weights_are_none():
    assert not proofs(tokens_of(plain, other_weights(0.5)), situation())


def test_greedy_tokens_say_nothing():
    """The most likely token's entry is the right one there."""
    tokens = tokens_of(sampled=top_k(1))
    assert wrong_entry.proof(tokens, situation()) is None


def test_without_statistics_nothing_is_said():
    assert wrong_entry.proof(replace(of_the_first(), trainer_statistics={}), situation()) is None
