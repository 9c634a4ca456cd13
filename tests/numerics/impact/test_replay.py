"""Each correction by a loop over rollouts and tokens."""

import math

import numpy as np
import pytest

from onepolicy.numerics.impact.advantages import group_advantages
from onepolicy.numerics.impact.choices import CHOICES, OFF_POLICY
from onepolicy.numerics.impact.clip import ClipRange
from onepolicy.numerics.impact.corrections import VERL_BOUND
from onepolicy.numerics.impact.sequences import sequences_of
from onepolicy.numerics.impact.sums import ImpactSums

ALL = {one.name: one for one in (*CHOICES, OFF_POLICY)}


def cut(x):
    return min(max(x, -VERL_BOUND), VERL_BOUND)


def k(name, d):
    return {"k1": -d, "k2": d * d / 2, "k3": math.exp(d) - 1 - d}[name]


def weights(correction, d, negative):
    """One rollout's weights, 0 where masked."""
    d = d.tolist()
    found = []
    for one in d:
        w = 1.0
        if (weight := correction.weight) is not None:
            raw = math.exp(cut(sum(d) if weight.of_sequence else one))
            inside = weight.low <= raw <= weight.high
            w = raw if inside else 0.0 if weight.masks else min(max(raw, weight.low), weight.high)
        found.append(w)
    if (rejection := correction.rejection) is None or (rejection.only_negative and not negative):
        return found
    level, _, name = rejection.statistic.rpartition("_")
    each = [k(name, cut(one)) for one in d]
    of = {"seq_sum": sum(each), "seq_mean": sum(each) / len(d), "seq_max": max(each)}
    values = each if level == "token" else [of[level]] * len(d)
    return [w if rejection.low <= v <= rejection.high else 0.0 for w, v in zip(found, values, strict=True)]


@pytest.mark.parametrize("name", ALL)
def test_every_number_is_that_of_a_loop(added, rows, ds, name):
    rewards = np.random.default_rng(6).integers(0, 2, len(rows)).astype(float)
    sums = added(rewards, choices=[ALL[name]])
    found = sums.replays[0].result(sums.groups, rewarded=True)
    chosen = [(d, r, s) for d, r, s in zip(ds, rewards, sums.advantages.signs, strict=True) if len(d)]
    per_rollout = [np.array(weights(ALL[name], d, s < 0)) for d, _, s in chosen]
    w, d = np.concatenate(per_rollout), np.concatenate([d for d, _, _ in chosen])
    product = np.concatenate([np.full(len(d), np.exp(d.sum())) for d, _, _ in chosen])
    close = {"rel": 1e-9, "abs": 1e-12}
    assert found.kept.value == pytest.approx(np.mean(w > 0), **close)
    assert found.mean_weight.value == pytest.approx(w.mean(), **close)
    assert found.variance == pytest.approx(w.var(), **close)
    assert found.token_distance == pytest.approx(np.abs(w - np.exp(d)).mean(), **close)
    assert found.sequence_distance == pytest.approx(np.abs(w - product).mean(), **close)
    assert found.rollouts_kept == pytest.approx(np.mean([np.any(one > 0) for one in per_rollout]))
    assert found.rollouts_whole == pytest.approx(np.mean([np.all(one > 0) for one in per_rollout]))
    if w.any():
        assert found.effective_share == pytest.approx(w.sum() ** 2 / (len(w) * (w**2).sum()), **close)
    else:
        assert found.effective_share is None
    correct = [one for one, (_, r, _) in zip(per_rollout, chosen, strict=True) if r > 0]
    assert found.correct_lost == sum(not one.any() for one in correct)
    assert found.correct_tokens_lost == pytest.approx(np.mean(np.concatenate(correct) == 0), **close)


def test_tis_says_how_many_weights_it_cut(added, ds):
    sums = added(choices=[ALL["token_tis"], ALL["sequence_tis"]])
    token, sequence = (one.result(sums.groups, rewarded=False) for one in sums.replays)
    assert token.cut == pytest.approx(np.mean(np.exp(np.concatenate(ds)) > 2))
    above = sum(len(d) for d in ds if d.sum() > np.log(2))
    assert sequence.cut == pytest.approx(above / sum(map(len, ds)))
    assert token.correct_lost is None


def test_without_mismatch_every_correction_does_nothing(pair, rollout):
    p = [-1.0, -2.0, -0.5]
    rows = [rollout(p, p, name=name) for name in "ab"]
    sums = ImpactSums(advantages=group_advantages(np.array([0.0, 1.0]), ["a", "a"]), clip=ClipRange())
    sums.add(pair(rows))
    assert len(sums.replays) == len(ALL)
    for one in sums.replays:
        found = one.result(sums.groups, rewarded=True)
        assert (found.kept.value, found.effective_share, found.variance, found.cut) == (1.0, 1.0, 0.0, 0.0)
        assert found.token_distance == found.sequence_distance == found.correct_lost == 0


def test_sequence_ratios_are_those_of_a_loop(added, ds):
    sums = added()
    found = sequences_of(sums.groups, *sums.sequence_logs())
    there = [d for d in ds if len(d)]
    product, geometric = sorted(d.sum() for d in there), sorted(d.mean() for d in there)
    assert found.product_outside.value == pytest.approx(np.mean([abs(x) > np.log(2) for x in product]))
    assert found.geometric_outside.value == pytest.approx(
        np.mean([not np.log(0.999) <= x <= np.log(1.001) for x in geometric])
    )
    for name, share in (("p25", 0.25), ("p50", 0.5), ("p99", 0.99)):
        rank = math.ceil(share * len(there)) - 1
        assert found.product[name] == pytest.approx(np.exp(product[rank]))
        assert found.geometric[name] == pytest.approx(np.exp(geometric[rank]))
