import math

import numpy as np
import pytest

from onepolicy.numerics.evidence import KEPT, Places, contradicted_zeros, gaps_of, invalid_values
from onepolicy.records.tokens import TokenState

V, ABSENT = TokenState.VALUE, TokenState.ABSENT


def test_a_zero_is_contradicted_by_anything_below_minus_1e_4_on_either_side(rollout, pair):
    p = [0.0, 0.0, -0.0, -0.5, -1e-3, 0.0, 0.0]
    q = [-2e-4, -5e-5, -0.5, 0.0, -1e-3, 0.0, math.nan]
    assert contradicted_zeros(pair([rollout(p, q)])).tolist() == [True, False, True, True, False, False, False]


def test_a_zero_at_a_token_that_is_not_compared_proves_nothing(rollout, pair):
    block = pair([rollout([0.0, 0.0], [-1.0, -1.0], sampled=[False, True], q_states=[V, ABSENT])])
    assert not contradicted_zeros(block).any()


def test_invalid_values_are_those_of_compared_tokens_on_either_side(rollout, pair):
    nan = math.nan
    block = pair([rollout([nan, nan, -1.0, -1.0], [-1.0, -1.0, nan, -1.0], sampled=[False, True, True, True])])
    assert invalid_values(block).tolist() == [False, True, True, False]


def test_places_name_the_first_position_in_each_of_the_first_rollouts_and_count_all(rollout, pair):
    places = Places()
    names = [f"r-{i}" for i in range(KEPT + 2)]
    rows = [rollout([], [], name="empty")]
    rows += [rollout([-1.0, math.nan, math.nan], [-1.0, -3.0, -1.0], name=name) for name in names]
    for part in (rows[:3], rows[3:]):
        block = pair(part)
        places.add(block, invalid_values(block))
    assert places.rollouts == KEPT + 2
    assert [place.rollout_id for place in places.first] == names[:KEPT]
    assert {place.position for place in places.first} == {1}
    assert math.isnan(places.first[0].rollout_logprob)
    assert places.first[0].trainer_logprob == -3.0


def test_a_gap_says_how_many_tokens_of_which_side_have_no_logprob(rollout, pair):
    four, missing = [-1.0] * 4, [ABSENT, V, V, V]
    block = pair(
        [
            rollout(four, four, name="rollout only", p_states=missing),
            rollout(four, four, name="none"),
            rollout(
                four, four, name="trainer only", q_states=[ABSENT, ABSENT, V, V], sampled=[False, True, True, True]
            ),
            rollout(four, four, name="both", p_states=missing, q_states=[V, V, V, ABSENT]),
        ]
    )
    assert [(gap.rollout_id, gap.compared, gap.without, gap.side) for gap in gaps_of(block)] == [
        ("rollout only", 4, 1, "rollout side"),
        ("trainer only", 3, 1, "trainer side"),
        ("both", 4, 2, "both sides"),
    ]


@pytest.mark.parametrize("blocks", [1, 2, 5, 12])
def test_the_worst_rollouts_come_first_and_the_earlier_of_two_equals_stays(rollout, measured, blocks):
    shifts = [0.1, 0.5, 0.2, 0.5, 0.05, 0.3, 0.2, 0.01, 0.4, 0.2, 0.0, 0.2]
    rows = [rollout([-2.0, -2.0], [-2.0, -2.0 + shift], name=f"r-{i}") for i, shift in enumerate(shifts)]
    result = measured(rows, blocks=blocks)
    assert [detail.rollout_id for detail in result.worst_by_token] == ["r-1", "r-3", "r-8", "r-5", "r-2"]
    assert [detail.rollout_id for detail in result.worst_by_kl] == ["r-1", "r-3", "r-8", "r-5", "r-2"]


def test_the_worst_by_mean_and_by_token_are_two_questions(rollout, measured):
    spike = rollout([-2.0] * 100, [-2.0] * 99 + [-1.0], name="one bad token")
    bias = rollout([-2.0] * 100, [-1.6] * 100, name="all a little off")
    result = measured([spike, bias])
    assert result.worst_by_token[0].rollout_id == "one bad token"
    assert result.worst_by_kl[0].rollout_id == "all a little off"


def test_a_bad_rollout_is_kept_with_its_ids_and_the_place_of_its_worst_token(rollout, measured):
    row = rollout(
        [-9.0, -1.0, -1.0, -2.0, -1.0],
        [-1.0, -1.0, -1.5, -5.0, -1.0],
        ids=[10, 11, 12, 13, 14],
        sampled=[False, True, True, True, True],
        q_states=[V, ABSENT, V, V, V],
    )
    detail = measured([rollout([-1.0], [-1.0], name="good"), row]).worst_by_token[0]
    assert detail.token_ids.tolist() == [10, 11, 12, 13, 14]
    assert detail.positions.tolist() == [2, 3, 4]
    assert detail.positions[detail.worst] == 3
    assert (detail.rollout_logprobs[detail.worst], detail.trainer_logprobs[detail.worst]) == (-2.0, -5.0)
    assert (detail.max_abs_d, detail.sum_d) == (3.0, -3.5)
    assert detail.mean_abs_d == pytest.approx(3.5 / 3)
    d = np.array([-0.5, -3.0, 0.0])
    assert detail.mean_k3 == pytest.approx((np.exp(d) - 1 - d).mean())


def test_rollouts_without_a_compared_token_are_never_among_the_worst(rollout, measured):
    result = measured([rollout([], [], name="empty"), rollout([-1.0], [-1.0], name="absent", p_states=[ABSENT])])
    assert result.worst_by_kl == result.worst_by_token == []
