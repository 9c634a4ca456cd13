"""Runs of a few rollouts with rewards, and the same as plain lists for loops."""

import numpy as np
import pytest

from onepolicy.numerics.impact.advantages import group_advantages
from onepolicy.numerics.impact.clip import ClipRange
from onepolicy.numerics.impact.sums import ImpactSums

CLIP = ClipRange(low=0.2, high=0.3)


@pytest.fixture(params=[0.02, 0.5, 8.0], ids="noise of {}".format)
def rows(request, rollout):
    """Rollouts of all lengths, some empty, four to a prompt; with the largest noise every bound acts."""
    rng = np.random.default_rng(3)
    result = []
    for i, n in enumerate([0, 1, 300, 1, *rng.integers(2, 60, 44)]):
        p = -rng.exponential(1.0, n) - 20.0
        q = np.minimum(p + request.param * rng.standard_normal(n), 0)
        result.append(rollout(p, q, name=f"r-{i}", prompt=f"p-{i // 4}"))
    return result


@pytest.fixture
def rewards(rows):
    """One group without a difference, one with a reward missing."""
    found = np.random.default_rng(4).integers(0, 2, len(rows)).astype(float)
    found[4:8] = 1.0
    found[9] = np.nan
    return found


@pytest.fixture
def ds(rows):
    return [np.float64(np.float32(row["q"])) - np.float64(np.float32(row["p"])) for row in rows]


@pytest.fixture
def added(rows, pair, monkeypatch):
    """Everything added up, in two blocks of several pieces."""
    monkeypatch.setattr("onepolicy.numerics.impact.piece.PIECE_TOKENS", 100)

    def add(rewards=None, *, clip=CLIP, choices=None, updated=None):
        rewards = np.full(len(rows), np.nan) if rewards is None else rewards
        sums = ImpactSums(
            advantages=group_advantages(rewards, [row["prompt"] for row in rows]), clip=clip, choices=choices
        )
        for part in (rows[:10], rows[10:]):
            sums.add(pair(part), None if updated is None else updated(part))
        return sums

    return add
