"""Rows of the head that are no tokens, in the softmax of one side."""

from dataclasses import replace

import numpy as np
import pytest
from causes.planted import all_causes, at, first, found, named, other_weights, plain, situation, tokens_of, top_p

from onepolicy.diagnosis.causes import vocabulary_padding
from onepolicy.records.finding import Outcome

ALONE = {"vocabulary padding": vocabulary_padding.CAUSE}


@pytest.mark.parametrize("side", ["rollout", "trainer"])
@pytest.mark.parametrize("kept", ["rollout", "trainer"])
def test_rows_of_zeros_are_counted(side, kept):
    finding = first(tokens_of(padding={side: (400, 0.0)}, kept=(kept,)), situation())
    masked = "trainer" if side == "rollout" else "rollout"
    assert (finding.cause, finding.outcome) == ("vocabulary padding", Outcome.CAUSE)
    assert finding.value == pytest.approx(400, abs=4 * finding.value_error)
    assert f"left out on the {masked} side alone" in finding.label


def test_rows_with_another_logit_count_as_so_many_rows_of_zeros():
    finding = first(tokens_of(padding={"trainer": (500, 2.0)}), situation())
    assert finding.outcome is Outcome.CAUSE
    assert finding.value == pytest.approx(500 * np.exp(2.0), abs=4 * finding.value_error)


@pytest.mark.parametrize("sigma", [0.01, 0.05])
def test_noise_alone_is_no_padding(sigma):
    tokens = tokens_of(kept=("rollout", "trainer"), sigma=sigma, seed=8)
    assert not named(found(tokens, situation(sigma=sigma), ALONE))


def test_top_p_is_no_padding():
    """It has one sign too, but costs a certain token nothing, and has an edge."""
    for mass in (0.9, 0.8):
        assert first(tokens_of(top_p(mass), sigma=0.05), situation(sigma=0.05)).cause == "truncation"


@pytest.mark.parametrize("trainer", [at(0.9), at(1.2), other_weights(0.3)])
def test_a_temperature_or_other_weights_have_both_signs(trainer):
    assert not named(found(tokens_of(plain, trainer), situation(), ALONE))


def test_sizes_that_differ_are_said():
    known = situation()
    sizes = {"rollout": 151669, "trainer": 151936}
    infos = {
        side: getattr(known, side).model_copy(
            update={"engine": getattr(known, side).engine.model_copy(update={"vocab_size": size})}
        )
        for side, size in sizes.items()
    }
    finding = first(tokens_of(padding={"trainer": (400, 0.0)}), replace(known, **infos))
    assert finding.seen == "the rollout side has a vocabulary of 151669, the trainer of 151936"
    assert "resize_token_embeddings" in finding.remedy
    assert set(all_causes()) >= set(ALONE)
