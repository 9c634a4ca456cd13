"""Oracle: the sentences of the table, in plain Python on one small pair."""

import math

import pytest

from onepolicy.numerics.table import REDUCTIONS, reductions
from onepolicy.records.tokens import TokenState

P = [-0.5, -1.0, -2.0, -0.0005]
Q = [-0.25, -1.0, -3.0, -0.0005]
D = [0.25, 0.0, -1.0, 0.0]


def test_every_reduction_is_what_its_sentence_says(rollout, measured):
    rows = [
        rollout(P[:2], Q[:2], name="a", p_top1=[1, 1], q_top1=[1, 2]),
        rollout(P[2:], Q[2:], name="b"),
        rollout([], [], name="empty"),
    ]
    k3 = [math.exp(d) - 1 - d for d in D]
    difference = [abs(math.exp(q) - math.exp(p)) for p, q in zip(P, Q, strict=True)]
    assert reductions(measured(rows)) == pytest.approx(
        {
            "mean_d": -0.1875,
            "mean_abs_d": 0.3125,
            "abs_d_p50": 0.0,
            "abs_d_p90": 1.0,
            "abs_d_p99": 1.0,
            "abs_d_p99_9": 1.0,
            "max_abs_d": 1.0,
            "k1": 0.1875,
            "k2": (0.25**2 + 1) / 8,
            "k3": sum(k3) / 4,
            "gate": sum(k3) / 4,
            "gate_standard_error": abs(k3[0] + k3[1] - k3[2] - k3[3]) / 4,
            "mean_importance_ratio": sum(map(math.exp, D)) / 4,
            "mean_probability_difference": sum(difference) / 4,
            "max_probability_difference": max(difference),
            "correlation": _correlation(P, Q),
            "bitwise_share": 0.5,
            "bitwise_share_unsaturated": 1 / 3,
            "top1_agreement": 0.5,
            "sequence_ratio_outside": 0.5,
            "max_abs_sequence_d": 1.0,
        },
        rel=0.008,
    )


def _correlation(a, b):
    mean_a, mean_b = sum(a) / len(a), sum(b) / len(b)
    cross = sum((x - mean_a) * (y - mean_b) for x, y in zip(a, b, strict=True))
    return cross / math.sqrt(sum((x - mean_a) ** 2 for x in a) * sum((y - mean_b) ** 2 for y in b))


def test_nothing_compared_gives_no_number_at_all(rollout, measured):
    assert reductions(measured([])) == {}
    absent = rollout([-1.0], [-1.0], q_states=[TokenState.ABSENT])
    assert reductions(measured([absent, rollout([], [], name="empty")])) == {}


def test_a_reduction_without_a_value_is_left_out_and_an_infinite_one_is_not(rollout, measured):
    found = reductions(measured([rollout([-900.0], [-1.0])]))
    assert found["k3"] == math.inf
    assert "top1_agreement" not in found
    assert "correlation" not in found


def test_released_names_stay():
    assert " ".join(REDUCTIONS) == (
        "mean_d mean_abs_d abs_d_p50 abs_d_p90 abs_d_p99 abs_d_p99_9 max_abs_d k1 k2 k3 gate "
        "gate_standard_error mean_importance_ratio "
        "mean_probability_difference max_probability_difference correlation bitwise_share "
        "bitwise_share_unsaturated top1_agreement sequence_ratio_outside max_abs_sequence_d"
    )
