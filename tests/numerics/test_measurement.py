import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onepolicy.numerics.hybrid import PairedTop
from onepolicy.numerics.table import reductions
from onepolicy.records.protocol import Meaning
from onepolicy.records.tokens import TokenState

V, MASKED, INVALID, ABSENT, TRUNCATED, EXCLUDED = TokenState
NUMBERS = [-0.5, -1.0, -3.25, 0.0, -1e-3, -700.0, math.nan, -9999.0, 0.5]


@st.composite
def rollouts(draw):
    """Plain columns of up to ten rollouts of few prompts, with every state and every kind of number in them."""
    rows = []
    for i in range(draw(st.integers(1, 10))):
        n = draw(st.integers(0, 6))

        def column(values, length=n):
            return draw(st.lists(values, min_size=length, max_size=length))

        rows.append(
            {
                "p": column(st.sampled_from(NUMBERS)),
                "q": column(st.sampled_from(NUMBERS)),
                "name": f"r-{i}",
                "prompt": f"prompt {draw(st.integers(0, 3))}",
                "digest": f"digest {draw(st.integers(0, 3))}",
                "sampled": column(st.booleans()),
                "p_states": column(st.sampled_from([V, V, V, V, ABSENT])),
                "q_states": column(st.sampled_from([V, V, V, V, TRUNCATED])),
                "p_top1": column(st.integers(-1, 2)),
                "q_top1": column(st.integers(-1, 2)),
                "language": draw(st.sampled_from(["en", "zh", None])),
            }
        )
    return rows


def everything(result):
    """All that a measurement holds, as plain values."""
    plain = {
        field.name: getattr(result, field.name)
        for field in dataclasses.fields(result)
        if field.name
        not in (
            "totals",
            "clusters",
            "by_kl",
            "by_token",
            "sums",
            "invalid",
            "zeros",
            "native",
            "buckets",
            "sample",
            "lags",
            "ends",
        )
    }
    ends = result.ends
    plain["ends"] = [
        (ends.rollouts, ends.inner, ends.first),
        *(counts.tolist() for counts in (ends.empty_ends, ends.empty_inner, ends.both_zero)),
    ]
    plain["rollout_states"], plain["trainer_states"] = (
        plain["rollout_states"].tolist(),
        plain["trainer_states"].tolist(),
    )
    for name in ("by_kl", "by_token"):
        plain[name] = [(d.rollout_id, d.positions.tolist(), d.sum_d) for d in getattr(result, name).rollouts]
    for name in ("invalid", "zeros"):
        places = getattr(result, name)
        plain[name] = (places.rollouts, [(place.rollout_id, place.position) for place in places.first])
    plain["histogram"] = result.totals.histogram.tolist()
    plain["buckets"] = (result.buckets.histogram(), result.buckets.equal, result.buckets.outside_clip)
    plain["sample"] = (result.sample.keys.tolist(), result.sample.rollout.tolist(), result.sample.trainer.tolist())
    plain["lags"] = (result.lags.rollouts, result.lags.values.count.tolist(), result.lags.rows.count.tolist())
    plain["clusters"] = (len(result.clusters), result.clusters.duplicates)
    return plain


@settings(max_examples=60, deadline=None)
@given(rollouts(), st.integers(2, 10))
def test_blocks_of_any_size_give_what_one_block_gives(rollout, measured, rows, blocks):
    rows = [rollout(**row) for row in rows]
    whole, parts = measured(rows), measured(rows, blocks=blocks)
    assert everything(parts) == everything(whole)
    assert parts.sums == pytest.approx(whole.sums, rel=1e-12)
    assert dataclasses.asdict(parts.gate()) == pytest.approx(dataclasses.asdict(whole.gate()), rel=1e-9, nan_ok=True)
    assert reductions(parts) == pytest.approx(reductions(whole), rel=1e-9, abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(rollouts())
def test_every_compared_token_is_counted_once_on_each_side(rollout, measured, rows):
    result = measured([rollout(**row) for row in rows])
    assert result.rollout_states.sum() == result.trainer_states.sum() == result.compared
    assert sum(compared for compared, _ in result.languages.values()) == result.compared
    assert sum(absent for _, absent in result.languages.values()) == result.compared - result.valid
    assert result.valid <= min(result.rollout_states[V], result.trainer_states[V])


def test_what_is_no_logprob_is_counted_as_invalid_and_kept_out_of_every_mean(rollout, measured):
    row = rollout([-1.0, math.nan, -9999.0, 0.5], [-1.5, -1.0, -1.0, -1.0], name="r-9")
    result = measured([row])
    assert result.rollout_states[INVALID] == 3
    assert (result.compared, result.valid) == (4, 1)
    assert result.mean("d") == -0.5
    assert (result.invalid.rollouts, result.invalid.first[0].rollout_id, result.invalid.first[0].position) == (
        1,
        "r-9",
        1,
    )


def test_rollouts_without_a_completion_and_without_a_value_are_two_things(rollout, measured):
    rows = [
        rollout([], [], name="empty"),
        rollout([-1.0], [-1.0], name="prompt only", sampled=[False], loss_mask=[False]),
        rollout([-1.0], [-1.0], name="absent", q_states=[ABSENT]),
        rollout([-1.0], [-1.0], name="whole"),
    ]
    result = measured(rows)
    assert (result.rollouts, result.empty_rollouts, result.valid_rollouts) == (4, 2, 1)


def test_gaps_are_kept_by_their_share_of_the_rollout(rollout, measured):
    def row(length, without):
        states = [ABSENT] * without + [V] * (length - without)
        return rollout([-1.0] * length, [-1.0] * length, name=f"{without} of {length}", p_states=states)

    gaps = measured([row(10, 2), row(2, 1), row(100, 3), row(4, 4), row(5, 0), row(8, 1), row(9, 3)], blocks=3).gaps
    assert [gap.rollout_id for gap in gaps] == ["4 of 4", "1 of 2", "3 of 9", "2 of 10", "1 of 8"]


def test_languages_come_from_the_tags_and_a_rollout_without_one_has_a_place(rollout, measured):
    rows = [
        rollout([-1.0] * 3, [-1.0] * 3, name="a", language="zh", p_states=[V, ABSENT, V]),
        rollout([-1.0] * 2, [-1.0] * 2, name="b", language="zh"),
        rollout([-1.0], [-1.0], name="c", language=None),
    ]
    assert measured(rows).languages == {"zh": [5, 1], "-": [1, 0]}


def test_top1_is_compared_where_both_sides_say(rollout, measured):
    row = rollout(
        [-1.0] * 5, [-1.0] * 5, p_top1=[1, 2, -1, 3, 4], q_top1=[1, 3, 2, -1, 4], sampled=[True] * 4 + [False]
    )
    result = measured([row])
    assert (result.top1_known, result.top1_equal) == (2, 1)


def test_a_sequence_ratio_outside_a_factor_of_two_counts_in_both_directions(rollout, measured):
    sums = [0.7, -0.7, 0.69, -0.69, 0.0]
    result = measured([rollout([-3.0] * 10, [-3.0 + s / 10] * 10, name=str(s)) for s in sums])
    assert result.sequence_outside == 2
    assert result.max_abs_sum_d == pytest.approx(0.7, rel=1e-6)


def test_the_gate_is_k3_by_prompt_and_a_repeated_draw_counts(rollout, measured):
    d = 0.5
    rows = [rollout([-2.0], [-2.0 + d], name=name, prompt="x", digest="same") for name in "ab"]
    rows.append(rollout([-2.0] * 3, [-2.0] * 3, name="c"))
    result = measured(rows)
    assert result.gate().value == pytest.approx(2 * (math.exp(d) - 1 - d) / 5)
    assert (result.clusters.duplicates, result.gate().clusters) == (1, 2)


def top_of_one_token(positions):
    n = len(positions)
    half = np.full((n, 1), math.log(0.5), dtype=np.float32)
    return PairedTop(positions=np.int32(positions), ids=np.zeros((n, 1), dtype=np.int32), rollout=half, trainer=half)


def test_top_lists_replace_k3_in_the_gate_and_are_counted(rollout, measured):
    rows = [rollout([-2.0, -2.0], [-1.0, -1.0], name=name, ids=[0, 0]) for name in "ab"]
    result = measured(rows, top={"a": top_of_one_token([0])})
    assert result.hybrid_tokens == 1
    assert result.gate().value == pytest.approx(3 * (math.e - 2) / 4)
    assert result.mean("k3") == pytest.approx(math.e - 2)


def test_top_lists_do_not_enter_a_mean_over_tokens_that_were_not_sampled(rollout, measured):
    rows = [rollout([-2.0], [-1.0], name="a", ids=[0])]
    result = measured(rows, top={"a": top_of_one_token([0])}, is_kl=False)
    assert result.hybrid_tokens == 0
    assert result.gate().value == pytest.approx(math.e - 2)


def test_nothing_has_no_mean_and_no_gate(measured):
    result = measured([])
    assert math.isnan(result.mean("k3"))
    assert math.isnan(result.gate().value)
    assert (result.valid, result.compared) == (0, 0)


def test_raw_and_processed_are_not_the_same_meaning(measured):
    assert measured([]).same_meaning
    assert not measured([], rollout_meaning=Meaning(temperature=0.7)).same_meaning
