"""Sums of rollouts and blocks against plain loops, and what is a cohort."""

import math

import numpy as np
import pytest

from onepolicy.numerics.horizon.sums import (
    BLOCK,
    GROUP_SUMS,
    Cohort,
    HorizonSums,
    block_means,
    measured_length,
    rollout_sums,
)

RNG = np.random.default_rng(7)


def by_hand(d):
    """The same for one rollout, in Python's own floats."""
    blocks = [d[i : i + 32] for i in range(0, len(d) - 31, 32)]
    found = {
        "rollouts": float(len(d) > 0),
        "tokens": len(d),
        "d": math.fsum(d),
        "k3": math.fsum(math.expm1(x) - x for x in d),
        "excess": math.fsum(math.exp(x) - 1 for x in d),
        "with_blocks": float(bool(blocks)),
        "blocks": len(blocks),
        "blocks_squared": len(blocks) ** 2,
    }
    for name, values in (("d", blocks), ("excess", [[math.exp(x) - 1 for x in b] for b in blocks])):
        means = [math.fsum(b) / 32 for b in values]
        found[f"{name}_sum"] = math.fsum(means)
        found[f"{name}_square"] = math.fsum(m * m for m in means)
        found[f"{name}_between"] = math.fsum(means) ** 2 / len(means) if means else 0.0
    return [found[name] for name in GROUP_SUMS]


@pytest.mark.parametrize("lengths", [[100], [31, 32, 33], [0, 64, 0, 5], [0], [1, 2, 3], [96, 0], [257, 1, 500]])
def test_sums_of_each_rollout_are_those_of_a_plain_loop(lengths):
    values = [RNG.normal(0, 0.3, n) for n in lengths]
    offsets = np.cumsum([0, *lengths])
    found = rollout_sums(np.concatenate(values), offsets)
    for row, d in zip(found, values, strict=True):
        assert row == pytest.approx(by_hand(d.tolist()), rel=1e-9, abs=1e-12)


def test_block_means_leave_out_the_last_few_tokens_of_each_rollout():
    values = np.concatenate([np.arange(70.0), np.full(31, -1.0), np.arange(32.0)])
    means, bounds = block_means(values, np.array([0, 70, 101, 133]))
    assert means.tolist() == [15.5, 47.5, 15.5]
    assert bounds.tolist() == [0, 2, 2, 3]


def test_a_ratio_beyond_float64_is_infinite_and_no_warning():
    found = dict(zip(GROUP_SUMS, rollout_sums(np.full(32, 800.0), np.array([0, 32]))[0], strict=True))
    assert found["excess"] == math.inf
    assert found["d_sum"] == pytest.approx(800.0)


def of_lengths(lengths, *, start=0):
    return [(f"p{i}", n) for i, n in enumerate(lengths, start)]


def test_the_measured_length_is_what_half_of_the_prompts_reach_in_whole_blocks():
    assert measured_length(of_lengths([100] * 10 + [200] * 14)) == 192
    assert measured_length(of_lengths([100] * 14 + [200] * 10)) == 96
    assert measured_length([*of_lengths([10] * 24), *of_lengths([70] * 24)]) == 64
    assert measured_length(of_lengths([400] * 11)) == 0
    assert measured_length(of_lengths([400] * 12)) == 384
    assert measured_length([]) == 0


@pytest.mark.parametrize("length", [32, 64, 96, 256, 384, 1000 // BLOCK * BLOCK])
def test_the_buckets_of_a_cohort_are_whole_blocks_from_its_first_to_its_last_token(length):
    edges = Cohort(length=length).edges
    assert edges[0] == 0
    assert edges[-1] == length
    assert (edges % BLOCK == 0).all()
    assert (np.diff(edges) > 0).all()
    assert len(edges) <= 9


@pytest.fixture
def gathered(rollout, pair):
    """64 tokens in one rollout, 96 in another and 40 in a third, with the positions as their |d|."""

    def rows(*lengths, prompts=None):
        made = []
        for i, n in enumerate(lengths):
            d = 1e-3 * (1 + np.arange(n))
            prompt = prompts[i] if prompts else f"p{i}"
            made.append(rollout(np.full(n, -1.0), -1.0 + d, name=f"r{i}", prompt=prompt))
        return pair(made)

    return rows


def test_positions_are_those_of_the_cohort_alone(gathered):
    sums = HorizonSums(cohort=Cohort(length=64))
    sums.add(gathered(64, 96, 40))
    assert sums.cohort_rollouts == 2
    tokens, _, abs_d, _ = np.moveaxis(sums.positions.sum(axis=0), 1, 0)
    assert tokens.tolist() == [64, 64]
    assert abs_d == pytest.approx([2e-3 * sum(range(1, 33)), 2e-3 * sum(range(33, 65))], rel=1e-5)


def test_a_sequence_ratio_outside_the_band_is_counted_over_the_cohorts_length(gathered):
    sums = HorizonSums(cohort=Cohort(length=32, band=(0.5, 1.5)))
    sums.add(gathered(32, 96, 20))  # 32 tokens add up to 0.528, above ln 1.5
    assert (sums.cohort_rollouts, sums.cohort_outside) == (2, 2)
    sums = HorizonSums(cohort=Cohort(length=32, band=(0.5, 1.8)))
    sums.add(gathered(32, 96, 20))
    assert (sums.cohort_rollouts, sums.cohort_outside) == (2, 0)


def test_samples_of_a_prompt_and_identical_rollouts_are_one_group(gathered, rollout, pair):
    sums = HorizonSums(cohort=Cohort(length=0))
    sums.add(gathered(64, 96, prompts=["same", "same"]))
    assert len(sums.groups) == 1
    sums.add(pair([rollout([-1.0] * 40, [-1.1] * 40, name="x", prompt="other", digest="digest of r0")]))
    assert len(sums.groups) == 1
    assert sums.groups[0, GROUP_SUMS.index("tokens")] == 200


def test_tokens_without_a_logprob_keep_their_position(rollout, pair):
    absent = [0] * 30 + [3] * 4 + [0] * 30  # TokenState.ABSENT
    p = [-1.0] * 64
    row = rollout(p, [-1.5] * 64, q_states=absent)
    sums = HorizonSums(cohort=Cohort(length=64))
    sums.add(pair([row]))
    assert sums.positions[0, :, 0].tolist() == [30, 30]
    assert sums.wanted == 64


def test_blocks_of_a_run_add_up_whatever_their_order(gathered):
    one, other = HorizonSums(cohort=Cohort(length=32)), HorizonSums(cohort=Cohort(length=32))
    one.add(gathered(64, 96, 40))
    for length, name in ((40, "p2"), (96, "p1"), (64, "p0")):
        made = gathered(length, prompts=[name])
        made.digests[0] = f"digest of {name}"
        other.add(made)
    assert np.allclose(one.groups.sum(axis=0), other.groups.sum(axis=0))
    assert np.allclose(one.positions.sum(axis=0), other.positions.sum(axis=0))
