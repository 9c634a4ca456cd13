import math

import numpy as np
import pytest

from onepolicy.numerics import clusters as module
from onepolicy.numerics.clusters import Clusters


def test_samples_of_one_prompt_are_one_cluster(rollout, pair):
    clusters = Clusters()
    rows = [rollout([-1.0] * n, [-1.0] * n, name=f"r-{n}", prompt="x" if n < 3 else "y") for n in (1, 2, 3)]
    clusters.add(pair(rows), np.array([5.0, 7.0, 6.0]))
    estimate = clusters.gate()
    assert len(clusters) == estimate.clusters == 2
    assert estimate.value == pytest.approx(18 / 6)
    assert estimate.effective_clusters == pytest.approx(2.0)


def test_identical_rollouts_are_one_independent_unit_whatever_their_prompts_within_and_across_blocks(rollout, pair):
    clusters = Clusters()
    a = rollout([-1.0], [-1.0], name="a", prompt="x", digest="same")
    b = rollout([-1.0], [-1.0], name="b", prompt="y", digest="same")
    clusters.add(pair([a, b]), np.array([1.0, 100.0]))
    clusters.add(pair([b]), np.array([100.0]))
    assert clusters.duplicates == 2
    assert clusters.gate().clusters == 1


def test_a_likely_completion_that_is_drawn_often_keeps_its_weight(rollout, pair):
    """Leaving repeated draws out would make the mean that of distinct completions, which is another policy."""
    clusters = Clusters()
    often = [rollout([-0.03], [-0.03], name=f"often-{i}", prompt="x", digest="often") for i in range(97)]
    rare = [rollout([-3.5], [-3.4], name=f"rare-{i}", prompt="x", digest="rare") for i in range(3)]
    clusters.add(pair([*often, *rare]), np.array([0.0] * 97 + [1.0] * 3))
    assert clusters.gate().value == pytest.approx(0.03)


@pytest.mark.parametrize("m", [63, 64, 65, 129, 300])
@pytest.mark.parametrize("blocks", [1, 7])
def test_no_prompt_is_lost_however_many_there_are(rollout, pair, m, blocks):
    clusters = Clusters()
    rows = [rollout([-1.0] * (1 + i % 3), [-1.0] * (1 + i % 3), name=f"r-{i}") for i in range(m)]
    gates = np.arange(m) + 1.0
    for part in np.array_split(np.arange(m), blocks):
        clusters.add(pair([rows[i] for i in part]), gates[part])
    estimate = clusters.gate()
    lengths = np.array([1 + i % 3 for i in range(m)])
    assert estimate.clusters == m
    assert estimate.value == pytest.approx(gates.sum() / lengths.sum(), rel=1e-12)
    assert estimate.effective_clusters == pytest.approx(lengths.sum() ** 2 / (lengths**2).sum(), rel=1e-12)


def test_prompts_beyond_the_largest_number_share_buckets_and_nothing_is_lost(rollout, pair, monkeypatch):
    monkeypatch.setattr(module, "MAX_CLUSTERS", 70)
    clusters = Clusters()
    rows = [rollout([-1.0] * 2, [-1.0] * 2, name=f"r-{i}") for i in range(500)]
    gates = np.arange(500.0)
    clusters.add(pair(rows), gates)
    clusters.add(pair([rollout([-1.0] * 2, [-1.0] * 2, name="again", prompt="of r-0")]), np.array([3.0]))
    estimate = clusters.gate()
    assert len(clusters) == estimate.clusters == 70
    assert estimate.value == pytest.approx((gates.sum() + 3.0) / 1002)
    assert estimate.effective_clusters < 70


def test_a_prompt_without_a_compared_token_is_no_cluster_of_the_estimate(rollout, pair):
    clusters = Clusters()
    clusters.add(pair([rollout([], [], name="a"), rollout([-1.0], [-1.0], name="b")]), np.array([0.0, 4.0]))
    assert clusters.gate().clusters == 1


def test_nothing_has_no_value():
    assert math.isnan(Clusters().gate().value)


def test_what_is_no_evidence_is_no_prompt_group(rollout, pair):
    """Prompts whose completions are empty, or the same sequence as before, must not make outliers look rarer."""
    clusters = Clusters()
    rows = [rollout([-1.0], [-1.0], name="a", digest="same")]
    rows += [rollout([-1.0], [-1.0], name=f"copy-{i}", prompt=f"p-{i}", digest="same") for i in range(5)]
    rows += [rollout([], [], name=f"empty-{i}", prompt=f"e-{i}") for i in range(5)]
    clusters.add(pair(rows), np.zeros(len(rows)))
    assert len(clusters) == clusters.gate().clusters == 1
