"""How far a side moves by itself, beside how far the sides are apart."""

import numpy as np
import pytest

from onepolicy.diagnosis.likelihood import Trial
from onepolicy.diagnosis.noise import noise_of_dtypes
from onepolicy.diagnosis.precision import Reread, evidence_of, finding_of, settled
from onepolicy.diagnosis.tokens import Tokens
from onepolicy.records.finding import Finding, Outcome

PROMPTS, LENGTH, VOCABULARY = 40, 60, 50


def drawn(moved_logits, *, seed=0):
    """Tokens drawn from softmax(z), and the logprobs that another set of logits gives them; both by enumeration.

    moved_logits: [M, V] logits of the rollout side and a generator -> those of the trainer.
    """
    rng = np.random.default_rng(seed)
    size = PROMPTS * LENGTH
    logits = 2.0 * rng.standard_normal((size, VOCABULARY))
    p = log_softmax(logits)
    chosen = np.array([rng.choice(VOCABULARY, p=np.exp(row)) for row in p])
    at = np.arange(size)
    q = log_softmax(moved_logits(logits, rng))[at, chosen]
    moved = log_softmax(rounded(logits, rng))[at, chosen] - p[at, chosen]
    names = [f"r{n}" for n in range(PROMPTS)]
    tokens = Tokens(
        rollout_ids=names,
        prompt_ids=names,
        sequences=[np.zeros(LENGTH + 1, dtype=np.int32)] * PROMPTS,
        rollout=at // LENGTH,
        position=at % LENGTH + 1,
        p=p[at, chosen],
        q=q,
    )
    return tokens, moved


def log_softmax(logits):
    return logits - np.log(np.exp(logits).sum(1, keepdims=True))


def rounded(logits, rng, size=0.03):
    return logits + size * rng.standard_normal(logits.shape)


def what_is_found(moved_logits, *, is_sampled=True):
    tokens, moved = drawn(moved_logits)
    again = Reread(cause="precision", label="two precisions", experiment="trainer in 16 bits", remedy="", moved=moved)
    return finding_of(Trial(tokens, noise_of_dtypes("float32")), again, is_sampled=is_sampled)


def test_sides_as_far_apart_as_one_of_them_moves_differ_by_precision():
    found = what_is_found(rounded)
    assert found.outcome is Outcome.CAUSE, found.seen
    assert found.residual == pytest.approx(1.0, abs=0.15)
    assert found.gain is not None
    assert found.gain > 0


@pytest.mark.parametrize("size", [0.06, 0.3])
def test_sides_further_apart_than_that_do_not(size):
    found = what_is_found(lambda logits, rng: rounded(logits, rng, size))
    assert found.outcome is (Outcome.PARTLY if size == 0.06 else Outcome.RULED_OUT)


def test_a_difference_that_only_some_confidences_have_is_no_precision():
    """A temperature moves unlikely tokens most."""
    assert what_is_found(lambda logits, rng: logits / 0.9).outcome is not Outcome.CAUSE


def test_a_difference_that_grows_along_the_sequence_is_no_precision():
    grown = np.tile(np.linspace(0.2, 1.8, LENGTH), PROMPTS)[:, None]
    found = what_is_found(lambda logits, rng: logits + 0.03 * grown * rng.standard_normal(logits.shape))
    assert found.outcome is Outcome.RULED_OUT


def test_an_importance_ratio_off_one_is_no_precision_of_a_sampled_run():
    """Logprobs that lack their normaliser are of no distribution."""
    tokens, moved = drawn(rounded)
    shifted = Tokens(**{name: getattr(tokens, name) for name in Tokens.__dataclass_fields__} | {"q": tokens.q + 0.01})
    again = Reread(cause="precision", label="", experiment="", remedy="", moved=moved)
    trial = Trial(shifted, noise_of_dtypes("float32"))
    assert finding_of(trial, again, is_sampled=True).outcome is Outcome.RULED_OUT
    assert finding_of(trial, again, is_sampled=False).outcome is Outcome.CAUSE


def test_neighbours_that_go_the_same_way_are_structure():
    tokens, moved = drawn(rounded)
    level = np.repeat(0.03 * np.random.default_rng(1).standard_normal(PROMPTS), LENGTH)
    shifted = Tokens(**{name: getattr(tokens, name) for name in Tokens.__dataclass_fields__} | {"q": tokens.p + level})
    assert evidence_of(shifted, moved, is_sampled=False).has_structure


def test_a_correction_that_explains_rules_precision_out_and_a_part_does_not():
    own = Finding(cause="precision", outcome=Outcome.CAUSE, gain=3.0)
    whole, part = (Finding(cause="stale weights", outcome=one, gain=5.0) for one in (Outcome.CAUSE, Outcome.PARTLY))
    assert [one.outcome for one in settled([whole], own)] == [Outcome.CAUSE, Outcome.RULED_OUT]
    assert [(one.cause, one.outcome) for one in settled([part], own)] == [
        ("precision", Outcome.CAUSE),
        ("stale weights", Outcome.RULED_OUT),
    ]
