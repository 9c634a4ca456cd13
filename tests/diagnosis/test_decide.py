"""From trials to an answer."""

import numpy as np
import pytest
from planted_difference import NOISE, SCALE, noise, offset, tokens_of

from onepolicy.diagnosis.cause import Cause
from onepolicy.diagnosis.decide import excess_of, findings_of
from onepolicy.diagnosis.likelihood import Family, Trial
from onepolicy.records.finding import Outcome

FAULT = 0.3 * np.sin(np.arange(1200))
OTHER = 0.3 * np.cos(0.37 * np.arange(1200))


def causes(*names):
    return {name: Cause(name=name, about="planted", remedy=lambda situation, value: "undo it") for name in names}


def column(tokens, name, fault):
    return Family(cause=name, values=(0.0,), corrected=lambda _: tokens.d - fault, label=lambda _: name)


def outcomes(d, *corrections):
    """Cause -> outcome, the best first."""
    tokens = tokens_of(d)
    trial = Trial(tokens, NOISE, candidates=len(corrections))
    tried = [trial.of(column(tokens, name, fault)) for name, fault in corrections]
    found = findings_of(trial, tried, causes(*(name for name, _ in corrections)), None)
    return {one.cause: one for one in found}


def test_what_removes_the_difference_is_the_cause_and_what_does_not_is_ruled_out():
    found = outcomes(FAULT + noise(), ("right", FAULT), ("wrong", OTHER))
    assert next(iter(found)) == "right"
    assert found["right"].outcome is Outcome.CAUSE
    assert found["right"].explained == pytest.approx(1.0, abs=0.02)
    assert found["right"].residual == pytest.approx(1.0, abs=0.1)
    assert found["right"].remedy == "undo it"
    assert found["wrong"].outcome is Outcome.RULED_OUT


def test_what_removes_a_part_is_a_part():
    found = outcomes(FAULT + OTHER + noise(), ("right", FAULT))
    assert found["right"].outcome is Outcome.PARTLY
    assert found["right"].residual > 1.5


def test_two_that_do_the_same_cannot_be_told_apart():
    found = outcomes(FAULT + noise(), ("one", FAULT), ("other", FAULT + 1e-4 * SCALE * OTHER), ("wrong", OTHER))
    assert found["one"].outcome is found["other"].outcome is Outcome.ONE_OF
    assert found["wrong"].outcome is Outcome.RULED_OUT


def test_beside_a_cause_that_is_whole_another_that_helps_a_little_is_ruled_out():
    found = outcomes(FAULT + noise(), ("right", FAULT), ("half", 0.5 * FAULT))
    assert found["right"].outcome is Outcome.CAUSE
    assert found["half"].outcome is Outcome.RULED_OUT


def test_noise_has_no_cause_and_no_excess():
    tokens = tokens_of(noise())
    assert not excess_of(Trial(tokens, NOISE)).is_there
    found = outcomes(noise(), ("right", FAULT), ("wrong", OTHER))
    assert {one.outcome for one in found.values()} == {Outcome.RULED_OUT}


def test_an_excess_has_an_error_over_prompts():
    excess = excess_of(Trial(tokens_of(FAULT + noise()), NOISE))
    assert excess.is_there
    assert excess.noise == pytest.approx(SCALE)
    assert 0 < excess.error < 0.01


def test_the_best_family_of_a_cause_stands_for_it():
    tokens = tokens_of(FAULT + noise())
    trial = Trial(tokens, NOISE)
    tried = [trial.of(column(tokens, "one", OTHER)), trial.of(column(tokens, "one", FAULT)), trial.of(offset(tokens))]
    found = findings_of(trial, tried, causes("one", "offset"), None)
    assert [one.cause for one in found] == ["one", "offset"]
    assert found[0].outcome is Outcome.CAUSE
