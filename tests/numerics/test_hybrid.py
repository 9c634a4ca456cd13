"""Oracle: sum over S of p ln(p/q) - p + q, plus k3 of a sampled token outside S, in plain Python."""

import math

import numpy as np
import pytest

from onepolicy.errors import AlignmentError
from onepolicy.numerics.hybrid import PairedTop, hybrid_sum, pair_top
from onepolicy.records.reading import TopLists
from onepolicy.records.tokens import TokenState

P, Q = [0.6, 0.3], [0.5, 0.35]
"""probabilities of the tokens 7 and 8 on both sides; the rest of the vocabulary has 0.1 and 0.15"""


def lists(positions, ids, logprobs):
    return TopLists(
        positions=np.array(positions, dtype=np.int32),
        ids=np.array(ids, dtype=np.int32),
        logprobs=np.array(logprobs, dtype=np.float32),
    )


def paired(positions, p=P, q=Q):
    n = len(positions)
    return PairedTop(
        positions=np.array(positions, dtype=np.int32),
        ids=np.tile(np.int32([7, 8]), (n, 1)),
        rollout=np.tile(np.log(p).astype(np.float32), (n, 1)),
        trainer=np.tile(np.log(q).astype(np.float32), (n, 1)),
    )


def inside():
    return sum(p * math.log(p / q) - p + q for p, q in zip(P, Q, strict=True))


def k3(p, q):
    return math.exp(q - p) - 1 - (q - p)


def test_a_token_in_the_lists_counts_by_the_lists_and_one_outside_by_k3_as_well(rollout, pair):
    outside = (math.log(0.1), math.log(0.15))
    row = rollout([math.log(0.6), outside[0]], [math.log(0.5), outside[1]], ids=[7, 99])
    total, used = hybrid_sum(paired([0, 1]), pair([row]), 0)
    assert used == 2
    assert total == pytest.approx(2 * inside() + k3(*outside), rel=1e-5)


def test_positions_are_those_of_the_full_sequence_and_of_the_right_rollout(rollout, pair):
    before = rollout([-1.0] * 3, [-2.0] * 3, name="before", ids=[7, 8, 7])
    row = rollout(
        [-9.0, -0.5, -0.7, -1.0], [-1.0, -0.6, -0.9, -1.3], ids=[7, 8, 7, 8], sampled=[False, True, True, True]
    )
    total, used = hybrid_sum(paired([2]), pair([before, row]), 1)
    assert used == 1
    assert total == pytest.approx(inside() + k3(-0.5, -0.6) + k3(-1.0, -1.3), rel=1e-5)


@pytest.mark.parametrize(
    ("side", "bad"),
    [*((side, bad) for side in ("rollout", "trainer") for bad in (math.nan, -9999.0, 0.5)), ("trainer", -math.inf)],
)
def test_a_list_with_an_entry_that_is_no_logprob_is_not_used(rollout, pair, side, bad):
    top = paired([0])
    getattr(top, side)[0, 1] = bad
    assert hybrid_sum(top, pair([rollout([-0.5], [-0.6], ids=[7])]), 0) == (pytest.approx(k3(-0.5, -0.6), rel=1e-5), 0)


def test_a_position_without_a_logprob_of_its_token_is_not_used(rollout, pair):
    row = rollout([-0.5, -0.5], [-0.6, -0.6], ids=[7, 7], q_states=[TokenState.ABSENT, TokenState.VALUE])
    assert hybrid_sum(paired([0]), pair([row]), 0) == (pytest.approx(k3(-0.5, -0.6), rel=1e-5), 0)


def test_a_k3_that_dwarfs_the_rest_leaves_nothing_behind_where_the_lists_replace_it(rollout, pair):
    row = rollout([-800.0, -1.0], [-1.0, -1.2], ids=[7, 7])
    assert hybrid_sum(paired([0]), pair([row]), 0)[0] == pytest.approx(inside() + k3(-1.0, -1.2), rel=1e-5)
    row = rollout([-100.0, -1.0], [-1.0, -1.2], ids=[7, 7])
    assert hybrid_sum(paired([0]), pair([row]), 0)[0] == pytest.approx(inside() + k3(-1.0, -1.2), rel=1e-5)


def test_lists_of_the_same_tokens_are_put_side_by_side():
    ours, theirs = (lists([4, 5], [[1], [2]], values) for values in ([[-1.0], [-2.0]], [[-1.5], [-2.5]]))
    top = pair_top("r", ours, theirs, length=6)
    assert top.positions.tolist() == [4, 5]
    assert (top.rollout.ravel().tolist(), top.trainer.ravel().tolist()) == ([-1.0, -2.0], [-1.5, -2.5])


@pytest.mark.parametrize("ids", [[[1], [3]], [[1, 2], [2, 1]]])
def test_lists_of_other_tokens_make_no_pair(ids):
    ours = lists([4, 5], [[1], [2]], [[-1.0], [-2.0]])
    assert pair_top("r", ours, lists([4, 5], ids, np.full(np.shape(ids), -1.0)), length=6) is None


@pytest.mark.parametrize("positions", [[4, 6], [4]])
def test_lists_of_other_positions_are_refused_with_the_rollout(positions):
    ours = lists([4, 5], [[1], [2]], [[-1.0], [-2.0]])
    theirs = lists(positions, [[1]] * len(positions), [[-1.0]] * len(positions))
    with pytest.raises(AlignmentError, match="rollout r-7: the two sides keep top lists at other positions"):
        pair_top("r-7", ours, theirs, length=7)


def test_lists_that_nobody_followed_are_paired_where_both_have_one():
    ours, theirs = lists([3, 4, 5], [[1], [2], [3]], [[-1.0]] * 3), lists([4, 5, 6], [[2], [3], [4]], [[-2.0]] * 3)
    top = pair_top("r", ours, theirs, length=7, own=True)
    assert (top.positions.tolist(), top.ids.ravel().tolist()) == ([4, 5], [2, 3])
    assert (top.rollout.ravel().tolist(), top.trainer.ravel().tolist()) == ([-1.0] * 2, [-2.0] * 2)
    with pytest.raises(AlignmentError, match="positions outside its 6 tokens"):
        pair_top("r", ours, theirs, length=6, own=True)


@pytest.mark.parametrize("positions", [[4, 6], [-1, 5]])
def test_positions_outside_the_rollout_are_refused_with_the_rollout(positions):
    ours = lists(positions, [[1], [2]], [[-1.0], [-2.0]])
    with pytest.raises(AlignmentError, match="rollout r-7: its top lists name positions outside its 6 tokens"):
        pair_top("r-7", ours, ours, length=6)


def test_a_token_that_truncation_removed_on_the_rollout_side_adds_what_the_trainer_gives_it(rollout, pair):
    top = paired([0])
    top.rollout[0], top.trainer[0] = (0.0, -math.inf), np.log(np.float32([0.9, 0.1]))
    value, used = hybrid_sum(top, pair([rollout([0.0], [math.log(0.9)], ids=[int(top.ids[0, 0])])]), 0)
    assert used == 1
    assert value == pytest.approx(-math.log(0.9), rel=1e-5)
