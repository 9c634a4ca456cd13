"""A repetition penalty on one side."""

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
    presence,
    repetition,
    situation,
    tokens_of,
)

from onepolicy.diagnosis.causes import penalty
from onepolicy.records.finding import Outcome


@pytest.mark.parametrize("value", [1.05, 1.1, 1.15])
def test_a_penalty_on_the_rollout_side_is_found_with_its_value(value):
    finding = first(tokens_of(repetition(value)), situation())
    assert (finding.cause, finding.outcome) == ("penalty", Outcome.CAUSE)
    # What lies between 1 and 1.1 is interpolated: to a hundredth of the penalty's effect, not to its error.
    assert finding.value == pytest.approx(value, abs=0.01 * (value - 1) + 4 * finding.value_error)


@pytest.mark.parametrize("value", [1.05, 1.2])
def test_a_penalty_on_the_trainer_side_is_found_by_the_rollout_sides_statistics_alone(value):
    known = situation(sigma=0.05)
    finding = first(tokens_of(plain, repetition(value), sigma=0.05, kept=("rollout",)), known)
    assert (finding.cause, finding.outcome) == ("penalty", Outcome.CAUSE)
    assert finding.label == f"repetition penalty {value:.2f} on the trainer side"
    assert "penalty" not in dict(named(found(tokens_of(plain, repetition(value), sigma=0.05), known, all_causes())))


@pytest.mark.parametrize("value", [1.05, 1.2, 1.3])
def test_what_is_between_the_penalties_that_are_kept_is_wrong_by_no_more_than_it_says(value):
    tokens = tokens_of(repetition(value), sigma=0.0)
    known = penalty._Unpenalised.of(tokens, penalty.is_seen(tokens), "trainer")
    wrong = np.abs(known.penalised(value) - tokens.p)
    assert np.mean(wrong <= known.error(value) + 1e-5) > 0.9
    assert wrong.mean() <= known.error(value).mean() + 1e-5


def test_a_presence_penalty_is_partly_a_repetition_penalty():
    finding = first(tokens_of(presence(0.5)), situation())
    assert (finding.cause, finding.outcome) == ("penalty", Outcome.PARTLY)


def test_what_is_seen_is_the_sign_for_tokens_that_were_there_before_and_for_new_ones():
    tokens = tokens_of(repetition(1.2))
    finding = first(tokens, situation())
    seen = penalty.is_seen(tokens)
    assert tokens.d[seen].mean() > 0 > tokens.d[~seen].mean()
    assert f"{tokens.d[seen].mean():+.2g} nats for tokens that were there before" in finding.seen


def test_seen_is_what_stands_before_in_the_rollout_or_its_prompt():
    tokens = tokens_of(kept=())
    expected = [ids[at] in ids[:at] for ids in map(list, tokens.sequences) for at in range(1, len(ids))]
    assert penalty.is_seen(tokens).tolist() == expected


@pytest.mark.parametrize("sigma", [0.01, 0.05])
def test_noise_alone_is_no_penalty(sigma):
    tokens, known = tokens_of(kept=("rollout", "trainer"), sigma=sigma, seed=6), situation(sigma=sigma)
    assert not named(found(tokens, known, {"penalty": penalty.CAUSE}))


@pytest.mark.parametrize("value", [0.8, 0.95, 1.3])
def test_a_temperature_is_no_penalty(value):
    assert first(tokens_of(at(value)), situation()).cause == "temperature"
    assert not named(found(tokens_of(at(value)), situation(), {"penalty": penalty.CAUSE}))


def test_other_weights_are_no_penalty():
    assert not named(found(tokens_of(plain, other_weights(0.3)), situation(), all_causes()))
