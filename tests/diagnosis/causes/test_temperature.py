"""One side at another temperature, found from the columns and statistics of two enumerated readings."""

from dataclasses import replace

import numpy as np
import pytest
from causes.planted import (
    all_causes,
    at,
    first,
    found,
    named,
    other_weights,
    plain,
    proofs,
    repetition,
    situation,
    tokens_of,
    top_p,
    with_p,
)

from onepolicy.diagnosis.causes import temperature
from onepolicy.records.finding import Outcome
from onepolicy.records.protocol import Meaning, SamplingProtocol

COLD = Meaning(temperature=0.7)
COLD_PROTOCOL = SamplingProtocol(temperature=0.7)


@pytest.mark.parametrize("sigma", [0.01, 0.05])
@pytest.mark.parametrize("value", [0.7, 0.9, 1.4])
def test_a_temperature_on_the_rollout_side_is_found_with_its_value(value, sigma):
    finding = first(tokens_of(at(value), sigma=sigma), situation(sigma=sigma))
    assert (finding.cause, finding.outcome) == ("temperature", Outcome.CAUSE)
    # Noise on the logits that are drawn from sharpens them, by about its variance.
    assert finding.value == pytest.approx(value, abs=4 * finding.value_error + sigma**2)
    assert f"temperature {value:.2f} on the rollout side" in finding.label


@pytest.mark.parametrize("kept", [("trainer",), ("rollout",), ("rollout", "trainer")])
def test_a_temperature_on_the_trainer_side_is_found_with_the_statistics_of_either_side(kept):
    finding = first(tokens_of(plain, at(0.8), kept=kept), situation())
    assert (finding.cause, finding.outcome) == ("temperature", Outcome.CAUSE)
    assert finding.value == pytest.approx(0.8, abs=5 * finding.value_error)
    assert "temperature 0.80 on the trainer side" in finding.label


def test_the_sampling_temperature_on_one_side_alone_is_named_so():
    tokens = tokens_of(at(0.7))
    finding = first(tokens, situation(rollout=COLD, protocol=COLD_PROTOCOL))
    assert finding.outcome is Outcome.CAUSE
    assert finding.label in (
        "temperature 0.70 on the rollout side alone, the sampling temperature",
        "temperature 1.00 on the trainer side: 0.7 not applied",
    )


def test_a_temperature_that_was_applied_twice_is_named_so():
    tokens = tokens_of(at(0.49), at(0.7), sampled=at(0.7))
    finding = first(tokens, situation(rollout=COLD, trainer=COLD, protocol=COLD_PROTOCOL, honest=at(0.7)))
    assert (finding.outcome, finding.label) == (
        Outcome.CAUSE,
        "temperature 0.49 on the rollout side: 0.7 applied twice",
    )


def test_a_temperature_that_was_not_applied_is_named_so():
    tokens = tokens_of(plain, at(0.7), sampled=at(0.7))
    finding = first(tokens, situation(rollout=COLD, trainer=COLD, protocol=COLD_PROTOCOL, honest=at(0.7)))
    assert finding.label == "temperature 1.00 on the rollout side: 0.7 not applied"


def test_near_1_the_label_names_the_other_side_as_well():
    finding = first(tokens_of(at(1.02)), situation())
    assert "1.02 on the rollout side" in finding.label
    assert "0.98 on the trainer side" in finding.label


def test_logprobs_that_were_divided_after_the_softmax_are_found_without_statistics():
    tokens = tokens_of(kept=())
    finding = first(with_p(tokens, tokens.p / 0.6), situation())
    assert (finding.cause, finding.outcome, finding.value) == ("temperature", Outcome.CAUSE, 0.6)
    assert finding.label.startswith("rollout logprobs divided by 0.60")


@pytest.mark.parametrize("kept", [("trainer",), ("rollout",), ("rollout", "trainer")])
@pytest.mark.parametrize("sigma", [0.01, 0.05, 0.3])
def test_noise_alone_is_no_temperature(kept, sigma):
    tokens, known = tokens_of(kept=kept, sigma=sigma, seed=4), situation(sigma=sigma)
    assert not named(found(tokens, known, {"temperature": temperature.CAUSE}))


def test_what_noise_does_to_a_temperature_grows_with_the_noise():
    """A temperature of 1.03 is found through 16 bits; through 4 it is what noise does."""
    through_16 = first(tokens_of(at(1.03), sigma=0.05), situation(sigma=0.05))
    assert (through_16.cause, through_16.outcome) == ("temperature", Outcome.CAUSE)
    assert abs(np.log(through_16.value)) == pytest.approx(np.log(1.03), abs=0.006)
    through_4, known = tokens_of(at(1.03), sigma=0.3), situation(sigma=0.3)
    assert not named(found(through_4, known, {"temperature": temperature.CAUSE}))


def test_a_declared_temperature_on_both_sides_is_none():
    tokens = tokens_of(at(0.7), at(0.7))
    known = situation(rollout=COLD, trainer=COLD, protocol=COLD_PROTOCOL, honest=at(0.7))
    assert not named(found(tokens, known, all_causes()))


@pytest.mark.parametrize("spread", [0.1, 0.3])
def test_other_weights_are_no_temperature(spread):
    tokens, known = tokens_of(plain, other_weights(spread)), situation()
    assert not named(found(tokens, known, all_causes()))
    assert not proofs(tokens, known)


def test_a_penalty_and_a_cut_are_no_temperature():
    for process, cause in ((repetition(1.1), "penalty"), (top_p(0.9), "truncation")):
        assert first(tokens_of(process), situation()).cause == cause


def test_the_engine_is_asked_only_where_no_side_has_statistics():
    known = situation(protocol=COLD_PROTOCOL)
    asked = list(temperature.experiments(tokens_of(kept=()), known))
    assert {0.49, 0.7} <= {round(one.value, 4) for one in asked}
    assert all(one.meaning == Meaning(temperature=one.value) for one in asked)
    assert 1.0 not in {one.value for one in asked}  # the trainer's own
    for kept in ("rollout", "trainer"):
        assert not list(temperature.experiments(tokens_of(kept=(kept,)), known))


def test_interpolated_normalisers_are_those_of_enumeration():
    logits = 3.0 * np.random.default_rng(0).standard_normal((5, 200))
    logp = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    nodes = np.array(
        [np.log((np.exp(logp) ** (1.25 - 0.75 * np.cos((2 * i + 1) * np.pi / 16))).sum(axis=1)) for i in range(8)]
    )
    for value in (0.49, 0.7, 1.3, 2.0):
        tempered = logits / value
        exact = tempered - np.log(np.exp(tempered).sum(axis=1, keepdims=True))
        moved = temperature.at_temperature(logp[:, 3], nodes, value)
        assert moved == pytest.approx(exact[:, 3], abs=2e-3)
        wrong = np.abs(moved - exact[:, 3])
        said = temperature.interpolation_error(nodes, 1 / value)
        assert 0.2 * said.mean() < wrong.mean() < said.mean()  # about, not token by token
        assert temperature.from_temperature(moved, nodes, value) == pytest.approx(logp[:, 3], abs=1e-9)


@pytest.mark.parametrize("side", ["rollout", "trainer"])
def test_the_remedy_is_the_temperature_of_the_rollouts_whichever_side_lacks_it(side):
    """In the columns of a server that says what it does, and of one that does not."""
    declared = COLD if side == "trainer" else Meaning()
    finding = first(tokens_of(at(0.7), kept=(side,)), situation(rollout=declared, protocol=COLD_PROTOCOL))
    assert finding.outcome is Outcome.CAUSE
    assert "score with the temperature 0.70" in finding.remedy


@pytest.mark.parametrize("name", ["vllm", "sglang", "fake"])
def test_the_remedy_names_the_engines_own_option(name):
    known = situation()
    info = known.rollout.model_copy(update={"engine": known.rollout.engine.model_copy(update={"name": name})})
    text = temperature.remedy(replace(known, rollout=info), 0.7)
    assert "0.70" in text
    assert {"vllm": "processed_logprobs", "sglang": "SGLANG_RETURN_ORIGINAL_LOGPROB", "fake": "T = 1"}[name] in text
