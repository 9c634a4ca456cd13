"""Against loops over tokens that compute PPO's gradient by hand."""

import math

import numpy as np
import pytest

from onepolicy.numerics.impact.advantages import group_advantages
from onepolicy.numerics.impact.clip import ClipRange, clipping_of, updated_of
from onepolicy.numerics.impact.sums import ImpactSums

LOW, HIGH = 0.2, 0.3


def without_gradient(ratio, advantage):
    """Whether min(r A, clip(r) A) is flat at r, from two points of the objective."""

    def objective(r):
        return min(r * advantage, min(max(r, 1 - LOW), 1 + HIGH) * advantage)

    return objective(ratio * (1 + 1e-9)) == objective(ratio)


def signs_of(rows, rewards):
    found = []
    for row, reward in zip(rows, rewards, strict=True):
        group = [other for other, its in zip(rewards, rows, strict=True) if its["prompt"] == row["prompt"]]
        found.append(np.sign(reward - np.mean(group)))  # NaN where one is missing
    return found


def clipping(sums):
    return clipping_of(sums.groups, sums.clip, rewarded=sums.advantages.rewarded, tokens_by_advantage={})


def test_shares_beyond_the_range_are_those_of_a_loop(added, ds):
    found, every = clipping(added()), np.concatenate(ds).tolist()
    assert found.above.value == pytest.approx(sum(math.exp(d) > 1 + HIGH for d in every) / len(every))
    assert found.below.value == pytest.approx(sum(math.exp(d) < 1 - LOW for d in every) / len(every))
    assert found.lost is None


def test_the_gradient_that_is_lost_is_that_of_the_objective(added, rows, ds, rewards):
    lost = of = 0
    for d, sign in zip(ds, signs_of(rows, rewards), strict=True):
        if sign in (-1, 1):
            of += len(d)
            lost += sum(without_gradient(math.exp(one), sign) for one in d)
    assert clipping(added(rewards)).lost.value == pytest.approx(lost / of)


@pytest.mark.parametrize("rewarded", [False, True])
def test_moved_tokens_are_misjudged_as_often_as_in_a_loop(added, rows, ds, rewards, rewarded):
    found = clipping(added(rewards if rewarded else None))
    assert {(one.is_above, round(one.true_ratio, 6)) for one in found.shifted} == {
        *((True, 1.0), (True, 1.15), (True, 1.45), (True, 1.6)),
        *((False, 1.0), (False, 0.9), (False, 0.7), (False, 0.6)),
    }
    signs = signs_of(rows, rewards)
    for one in found.shifted:
        chosen = [d for d, s in zip(ds, signs, strict=True) if not rewarded or s == (1 if one.is_above else -1)]
        seen = np.exp(np.concatenate(chosen)) * one.true_ratio
        clipped = seen > 1 + HIGH if one.is_above else seen < 1 - LOW
        truly = one.true_ratio > 1 + HIGH if one.is_above else one.true_ratio < 1 - LOW
        assert one.is_let_through == truly
        assert one.share.value == pytest.approx(np.mean(clipped != truly))


def test_a_ratio_below_zero_is_no_move(added):
    found = clipping(added(clip=ClipRange(low=0.6, high=0.6)))
    assert [round(one.true_ratio, 6) for one in found.shifted if not one.is_above] == [1.0, 0.7, 0.1]


def test_without_mismatch_nothing_is_misjudged(pair, rollout):
    p = [-1.0, -2.0, -0.5]
    sums = ImpactSums(advantages=group_advantages(np.array([np.nan]), ["a"]), clip=ClipRange())
    sums.add(pair([rollout(p, p)]))
    assert {one.share.value for one in clipping(sums).shifted} == {0.0}


def test_a_recorded_update_gives_both_errors_of_the_clip(added, rows, ds, rewards):
    rng = np.random.default_rng(5)
    moves = {row["name"]: np.float32(rng.normal(0, 0.3, len(row["p"]))) for row in rows}
    known = {row["name"]: rng.random(len(row["p"])) < 0.9 for row in rows}

    def updated(part):
        logprobs = [np.float32(row["q"]) + moves[row["name"]] for row in part]
        return np.concatenate(logprobs), np.concatenate([known[row["name"]] for row in part])

    found = updated_of(added(rewards, updated=updated).groups, "later", 1)
    assert [side.is_above for side in found.sides] == [True, False]
    for side in found.sides:
        counts = np.zeros(4)
        for row, d, sign in zip(rows, ds, signs_of(rows, rewards), strict=True):
            if sign != (1 if side.is_above else -1):
                continue
            q = np.float32(row["q"])
            true = np.exp(np.float64(q + moves[row["name"]]) - np.float64(q))
            seen = true * np.exp(d)
            a, b = (true > 1 + HIGH, seen > 1 + HIGH) if side.is_above else (true < 1 - LOW, seen < 1 - LOW)
            use = known[row["name"]]
            counts += [use.sum(), (a & use).sum(), (b & ~a & use).sum(), (a & ~b & use).sum()]
        expected = (counts / counts[0])[1:]
        got = [side.clipped.value, side.wrongly_clipped.value, side.wrongly_let_through.value]
        assert got == pytest.approx(expected)
