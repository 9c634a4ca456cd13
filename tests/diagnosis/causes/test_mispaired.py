"""Columns of one rollout beside those of another."""

from dataclasses import replace

import numpy as np
import pytest
from causes.planted import PROMPTS, SAMPLES, at, by_rollout, other_weights, plain, proofs, situation, tokens_of

from onepolicy.diagnosis.causes import mispaired

ROWS = PROMPTS * SAMPLES


def paired(tokens, order):
    """The trainer logprobs of rollout order[i] at rollout i."""
    return replace(tokens, q=by_rollout(tokens.q)[order].ravel())


def swapped(first, second):
    order = np.arange(ROWS)
    order[[first, second]] = second, first
    return order


@pytest.mark.parametrize(
    ("order", "count"),
    [
        (swapped(3, 20), 2),
        (np.roll(np.arange(ROWS), 1), ROWS),
        (np.random.default_rng(0).permutation(ROWS), ROWS),
    ],
    ids=["two rows", "the next one's", "shuffled"],
)
@pytest.mark.parametrize("sigma", [0.01, 0.05])
def test_rows_that_changed_places_are_found(order, count, sigma):
    tokens = paired(tokens_of(kept=(), sigma=sigma), order)
    proof = mispaired.proof(tokens, situation(sigma=sigma))
    moved = int((order != np.arange(ROWS)).sum())
    assert moved >= count - 3  # a permutation leaves some where they are
    assert proof.label == f"{moved} of {ROWS} rollouts have the trainer logprobs of another one"
    assert proof.is_decisive


def test_the_first_pair_is_named():
    proof = mispaired.proof(paired(tokens_of(kept=()), swapped(3, 20)), situation())
    assert "belong to rollout r20 stand at rollout r3" in proof.seen


def test_two_rows_are_not_decisive_where_others_are_far_apart_too():
    tokens = paired(tokens_of(kept=()), swapped(3, 20))
    q = tokens.q.copy()
    q[by_rollout(np.arange(len(q)))[30]] -= 0.5
    assert not mispaired.proof(replace(tokens, q=q), situation()).is_decisive


@pytest.mark.parametrize("trainer", [plain, at(0.7), other_weights(0.5)], ids=["noise", "temperature", "weights"])
def test_what_is_wrong_in_every_row_is_no_wrong_pairing(trainer):
    tokens = tokens_of(plain, trainer, seed=3)
    assert mispaired.proof(tokens, situation()) is None


def test_a_lag_is_no_wrong_pairing():
    tokens = tokens_of(kept=())
    assert not proofs(replace(tokens, q=np.roll(by_rollout(tokens.q), 1, axis=1).ravel()), situation())


def test_equal_rollouts_are_no_evidence():
    """Eight samples of a model that is nearly certain are one rollout: any of them fits any other."""
    tokens = tokens_of(kept=())
    p = np.tile(by_rollout(tokens.p)[0], ROWS)
    alike = replace(tokens, p=p, q=p + tokens.d)
    assert mispaired.proof(alike, situation()) is None
