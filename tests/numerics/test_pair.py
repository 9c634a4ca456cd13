import math

import numpy as np
import pytest

from onepolicy.numerics.pair import per_rollout
from onepolicy.records.tokens import TokenState

V, MASKED, INVALID, ABSENT, TRUNCATED, EXCLUDED = TokenState


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, -9999.0, -3.4e38, 0.5, 2e-6, -1000.0])
@pytest.mark.parametrize("side", ["p", "q"])
def test_a_value_that_is_no_logprob_becomes_invalid_and_is_not_compared(rollout, pair, side, number):
    columns = {"p": [-1.0, -1.0], "q": [-1.0, -1.0]}
    columns[side] = [-1.0, number]
    block = pair([rollout(**columns)])
    states = {"p": block.rollout_states, "q": block.trainer_states}
    other = "q" if side == "p" else "p"
    assert states[side].tolist() == [V, INVALID]
    assert states[other].tolist() == [V, V]
    assert block.both.tolist() == [True, False]
    assert block.sums.column("tokens").tolist() == [1.0]


def test_a_state_that_no_version_knows_is_invalid(rollout, pair):
    assert pair([rollout([-1.0], [-1.0], p_states=[17])]).rollout_states.tolist() == [INVALID]


def test_a_state_other_than_value_is_kept_whatever_number_stands_beside_it(rollout, pair):
    states = [MASKED, ABSENT, TRUNCATED, INVALID]
    block = pair([rollout([-1.0, math.nan, 0.5, -2.0], [-1.0] * 4, p_states=states)])
    assert block.rollout_states.tolist() == states
    assert not block.both.any()


def test_sampled_tokens_are_compared_and_the_loss_mask_only_where_nothing_was_sampled(rollout, pair):
    block = pair(
        [
            rollout([-1.0] * 3, [-1.0] * 3, name="fresh", sampled=[False, True, False], loss_mask=[False, True, True]),
            rollout([], [], name="empty"),
            rollout([-1.0] * 3, [-1.0] * 3, name="fixed", sampled=[False] * 3, loss_mask=[False, False, True]),
            rollout([-1.0] * 2, [-1.0] * 2, name="neither", sampled=[False] * 2, loss_mask=[False] * 2),
        ]
    )
    assert block.compared.tolist() == [False, True, False, False, False, True, False, False]


def test_compared_values_lie_one_after_the_other_and_belong_to_their_rollout(rollout, pair):
    block = pair(
        [
            rollout([-1.0, -2.0, -3.0], [-1.5, -2.5, -3.5], name="a", q_states=[V, ABSENT, V]),
            rollout([], [], name="b"),
            rollout([-4.0, -5.0], [-4.5, -5.5], name="c", sampled=[False, True]),
        ]
    )
    assert block.p.tolist() == [-1.0, -3.0, -5.0]
    assert block.q.tolist() == [-1.5, -3.5, -5.5]
    assert [block.p[block.part(row)].tolist() for row in range(3)] == [[-1.0, -3.0], [], [-5.0]]
    assert [block.whole(row) for row in range(3)] == [slice(0, 3), slice(3, 3), slice(3, 5)]
    assert block.sums.column("d").tolist() == [-1.0, 0.0, -0.5]


def test_flags_are_counted_by_rollout():
    flags, offsets = np.array([True, False, True, True]), np.array([0, 0, 3, 3, 4, 4])
    assert per_rollout(flags, offsets).tolist() == [0, 2, 0, 1, 0]
