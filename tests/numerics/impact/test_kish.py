import numpy as np
import pytest

from onepolicy.numerics.impact.kish import LogWeights


def of(*parts):
    found = LogWeights()
    for part in parts:
        found.add(np.array(part, dtype=np.float64))
    return found


def test_the_effective_share_is_kishs():
    logs = np.random.default_rng(0).normal(0, 2, 300)
    weights = np.exp(logs)
    found = of(logs[:100], [], logs[100:])
    assert found.effective_share() == pytest.approx(weights.sum() ** 2 / (300 * (weights**2).sum()), rel=1e-12)
    assert found.largest_share() == pytest.approx(weights.max() / weights.sum(), rel=1e-12)


def test_equal_weights_count_wholly_and_a_single_large_one_alone():
    assert of([3.0] * 7).effective_share() == pytest.approx(1)
    assert of([0.0] * 9, [5000.0]).effective_share() == pytest.approx(0.1)
    assert of([5000.0], [0.0] * 9).largest_share() == pytest.approx(1)


def test_no_weight_has_no_share():
    assert LogWeights().effective_share() is None
    assert LogWeights().largest_share() is None
