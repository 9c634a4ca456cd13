"""Both sides agree, and the tokens were drawn otherwise."""

from dataclasses import replace

import pytest
from causes.planted import (
    at,
    min_p,
    other_weights,
    plain,
    presence,
    proofs,
    repetition,
    situation,
    tokens_of,
    top_k,
    top_p,
)

from onepolicy.diagnosis.causes import same_wrong_sampling
from onepolicy.records.protocol import SamplingProtocol

KEPT = pytest.mark.parametrize("kept", ["rollout", "trainer"])


@KEPT
@pytest.mark.parametrize("value", [0.7, 0.8, 1.3])
def test_a_temperature_is_found_with_its_value(kept, value):
    proof = same_wrong_sampling.proof(tokens_of(sampled=at(value), kept=(kept,)), situation())
    found, error = proof.label.removeprefix("sampled at temperature ").split(",")[0].split(" +- ")
    assert float(found) == pytest.approx(value, abs=4 * float(error) + 0.005)
    assert not proof.is_decisive


@KEPT
@pytest.mark.parametrize(
    ("cut", "words"),
    [
        (top_k(20), ("with top-k 20", "with top-k 21")),
        (top_k(5), ("with top-k 5", "with top-k 6")),
        (top_p(0.9), ("with top-p 0.9",)),
        (top_p(0.8), ("with top-p 0.8",)),
        (min_p(0.05), ("with top-p", "with top-k", "with min-p")),
    ],
    ids=["top-k 20", "top-k 5", "top-p 0.9", "top-p 0.8", "min-p 0.05"],
)
def test_an_edge_beyond_which_nothing_was_drawn_is_found(kept, cut, words):
    proof = same_wrong_sampling.proof(tokens_of(sampled=cut, kept=(kept,)), situation())
    assert any(word in proof.label for word in words), proof.label
    assert "standard deviations from 0" in proof.seen


@pytest.mark.parametrize("process", [repetition(1.1), presence(0.7)], ids=["repetition", "presence"])
def test_a_penalty_is_found_by_its_likelihood_where_the_entropy_identity_holds(process):
    proof = same_wrong_sampling.proof(tokens_of(sampled=process), situation())
    assert "under a penalty on tokens that were there before" in proof.label


@KEPT
@pytest.mark.parametrize("seed", range(10, 16))
@pytest.mark.parametrize("sigma", [0.01, 0.3])
def test_honest_draws_are_none(kept, seed, sigma):
    tokens = tokens_of(kept=(kept,), seed=seed, sigma=sigma)
    assert same_wrong_sampling.proof(tokens, situation(sigma=sigma)) is None


def test_where_the_logprobs_differ_they_are_the_fault_and_not_the_sampling():
    for rollout, trainer in ((at(0.7), plain), (plain, other_weights(0.3)), (top_p(0.9), plain)):
        assert not proofs(tokens_of(rollout, trainer), situation())


def test_tokens_of_a_fixed_suite_or_greedy_ones_are_no_draws():
    tokens = tokens_of(sampled=at(0.7))
    assert same_wrong_sampling.proof(tokens, situation(is_sampled=False)) is None
    assert same_wrong_sampling.proof(tokens, situation(protocol=SamplingProtocol(temperature=0.0))) is None
    assert same_wrong_sampling.proof(replace(tokens, trainer_statistics={}), situation()) is None
