"""Logprobs over a kept set against logprobs over all."""

import pytest
from causes.planted import (
    at,
    first,
    found,
    min_p,
    named,
    plain,
    proofs,
    situation,
    tokens_of,
    top_k,
    top_p,
)

from onepolicy.diagnosis.causes import truncation
from onepolicy.records.finding import Outcome
from onepolicy.records.protocol import Meaning, SamplingProtocol

CUTS = {
    "top-p 0.9 ": top_p(0.9),
    "top-p 0.95 ": top_p(0.95),
    "top-k 20 ": top_k(20),
    "min-p 0.05 ": min_p(0.05),
}


@pytest.mark.parametrize("sigma", [0.01, 0.05])
@pytest.mark.parametrize("cut", CUTS)
def test_a_cut_on_the_rollout_side_is_found_by_its_name(cut, sigma):
    finding = first(tokens_of(CUTS[cut], sigma=sigma), situation(sigma=sigma))
    assert (finding.cause, finding.outcome) == ("truncation", Outcome.CAUSE)
    assert finding.label.startswith(f"{cut}on the rollout side")


@pytest.mark.parametrize("kept", [("trainer",), ("rollout",)])
def test_a_cut_on_the_trainer_side_is_found_with_the_statistics_of_either_side(kept):
    finding = first(tokens_of(plain, top_p(0.9), sampled=top_p(0.9), kept=kept), situation())
    assert (finding.cause, finding.outcome) == ("truncation", Outcome.CAUSE)
    assert finding.label.startswith("top-p 0.9 on the trainer side")


def test_a_mass_that_was_not_kept_is_found_about_and_before_vocabulary_padding():
    finding = first(tokens_of(top_p(0.8), sigma=0.05), situation(sigma=0.05))
    assert (finding.cause, finding.outcome) == ("truncation", Outcome.CAUSE)
    # The mass that is kept is that of top-p 0.8, and half of the token at its edge.
    assert 0.8 <= finding.value < 0.85


@pytest.mark.parametrize("sigma", [0.01, 0.05])
@pytest.mark.parametrize("count", [30, 40])
def test_a_top_k_between_two_whose_mass_is_kept_is_found_about(count, sigma):
    finding = first(tokens_of(top_k(count), sigma=sigma), situation(sigma=sigma))
    assert (finding.cause, finding.outcome) == ("truncation", Outcome.CAUSE)
    assert finding.label.startswith("top-k ")
    assert finding.value == pytest.approx(count, abs=2)


def test_a_temperature_that_one_side_declares_is_not_undone_along_with_a_cut():
    known = situation(rollout=Meaning(temperature=0.7), protocol=SamplingProtocol(temperature=0.7))
    tokens = tokens_of(at(0.7), kept=("rollout",))
    assert "truncation" not in dict(named(found(tokens, known, {"truncation": truncation.CAUSE})))


def test_a_side_that_declares_its_cut_is_brought_back_by_its_own_kept_mass():
    declared = Meaning(top_p=0.9)
    tokens = tokens_of(top_p(0.9), kept=("rollout",))
    tokens.rollout_statistics["log_kept_declared"] = tokens.rollout_statistics["log_kept_top_p_0_9"]
    finding = first(tokens, situation(rollout=declared))
    assert (finding.cause, finding.outcome) == ("truncation", Outcome.CAUSE)


@pytest.mark.parametrize("sigma", [0.01, 0.05])
def test_noise_alone_is_no_cut(sigma):
    tokens, known = tokens_of(kept=("rollout", "trainer"), sigma=sigma, seed=5), situation(sigma=sigma)
    assert not named(found(tokens, known, {"truncation": truncation.CAUSE}))
    assert not proofs(tokens, known)


def test_vocabulary_padding_and_a_temperature_are_no_cut():
    assert first(tokens_of(padding={"trainer": (500, 2.0)}), situation()).cause == "vocabulary padding"
    assert first(tokens_of(at(0.8)), situation()).cause == "temperature"


def test_the_engine_is_asked_for_the_protocols_cut_first_and_for_none_that_is_known_exactly():
    known = situation(protocol=SamplingProtocol(top_p=0.85, temperature=0.9))
    asked = [one.meaning for one in truncation.experiments(tokens_of(), known)]
    assert asked[0] == Meaning(top_p=0.85, temperature=0.9)
    assert all(one in asked for one in (Meaning(top_p=0.8), Meaning(top_k=40), Meaning(min_p=0.1)))
    assert Meaning(top_p=0.9) not in asked
    assert Meaning(top_p=0.9) in [one.meaning for one in truncation.experiments(tokens_of(kept=()), known)]
