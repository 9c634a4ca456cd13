"""Values that nobody computed."""

from dataclasses import replace

import numpy as np
import pytest
from causes.planted import at, plain, situation, tokens_of, top_p, with_p

from onepolicy.diagnosis.causes import placeholders
from onepolicy.records.protocol import Meaning
from onepolicy.records.verdict import Status, Verdict


def filled(tokens, value, *, every):
    p = tokens.p.copy()
    p[::every] = value
    return with_p(tokens, p)


@pytest.mark.parametrize("kept", [(), ("trainer",)])
def test_zeros_that_the_other_side_denies_are_placeholders(kept):
    proof = placeholders.proof(filled(tokens_of(kept=kept), 0.0, every=7), situation())
    assert proof.label == "placeholders of exactly 0.0 on the rollout side"
    assert proof.is_decisive


def test_whole_rows_of_zeros_are_placeholders():
    tokens = tokens_of(kept=())
    p = tokens.p.copy()
    p[tokens.rollout == 4] = 0.0
    proof = placeholders.proof(with_p(tokens, p), situation())
    assert "of 1 rollouts; the first is rollout r4" in proof.seen


@pytest.mark.parametrize("value", [-9999.0, -100.0, -3.4e38])
def test_one_sentinel_is_enough(value):
    tokens = tokens_of(kept=())
    p = tokens.p.copy()
    p[5] = value
    proof = placeholders.proof(with_p(tokens, p), situation())
    assert proof.label == "sentinel values on the rollout side"
    assert "rollout r0 at position 6" in proof.seen


def test_values_above_0_and_one_constant_are_found_on_the_trainer_side():
    tokens = tokens_of(kept=())
    for value, words in ((1.0, "values above 0"), (-0.6931471824645996, "one constant")):
        q = tokens.q.copy()
        q[::9] = value
        proof = placeholders.proof(replace(tokens, q=q), situation())
        assert words in proof.label
        assert proof.label.endswith("on the trainer side")


def test_what_is_no_logprob_was_taken_out_before_and_is_told_by_its_check():
    failed = Verdict(check="valid_logprobs", status=Status.FAIL, message="3 rollout values are no logprobs")
    proof = placeholders.proof(tokens_of(kept=()), replace(situation(), verdicts=(failed,)))
    assert proof.seen == "3 rollout values are no logprobs"


@pytest.mark.parametrize("seed", range(3))
def test_honest_values_are_no_placeholders(seed):
    assert placeholders.proof(tokens_of(seed=seed), situation()) is None


def test_a_token_that_is_nearly_certain_is_none():
    tokens = tokens_of(kept=())
    p, q = tokens.p.copy(), tokens.q.copy()
    p[::5], q[::5] = -1e-6, -1.2e-6
    assert placeholders.proof(replace(tokens, p=p, q=q), situation()) is None


def test_zeros_on_which_both_sides_agree_are_none():
    tokens = tokens_of(kept=())
    p, q = tokens.p.copy(), tokens.q.copy()
    p[::5], q[::5] = 0.0, -1e-4
    assert placeholders.proof(replace(tokens, p=p, q=q), situation()) is None


def test_the_only_token_that_a_cut_leaves_is_certain_by_right():
    tokens = tokens_of(top_p(0.3))
    assert np.count_nonzero(tokens.p == 0.0) > 100
    assert placeholders.proof(tokens, situation()) is None
    unknown = replace(tokens, trainer_top1=None)
    assert placeholders.proof(unknown, situation(rollout=Meaning(top_p=0.3))) is None


def test_16_bit_values_that_repeat_near_the_other_sides_are_none():
    """As bfloat16 writes them: 8 bits, so that thousands of tokens share a few hundred values."""
    tokens = tokens_of(plain, at(0.9), kept=())
    coarse = (tokens.p.astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32).astype(np.float64)
    assert len(np.unique(coarse)) < len(coarse) / 3
    assert placeholders.proof(with_p(tokens, coarse), situation()) is None
