"""A step's summary -> what is kept of it: the worst rollouts by prompt."""

import math
from itertools import pairwise

import numpy as np
import pytest

from onepolicy.numerics.steps.record import WORST_EDGES, record_of
from onepolicy.numerics.steps.summary import StepSummary


def k3(d):
    return math.exp(d) - 1 - d


def summary_of(pair, lags=-1):
    summary = StepSummary(step=7)
    n = len(pair.rollouts.rollout_ids)
    summary.add_pair(pair, lags=np.full(n, lags), advantages=np.full(n, np.nan))
    return summary


def test_prompts_are_counted_by_their_worst_rollout(rollout, pair):
    ds = {"a": [0.001, 0.3], "b": [0.02], "c": [0.0]}
    rows = [
        rollout([-1.0] * 4, [-1.0 + d] * 4, name=f"{prompt}{i}", prompt=prompt)
        for prompt, several in ds.items()
        for i, d in enumerate(several)
    ]
    counts = record_of(summary_of(pair(rows))).worst_rollouts
    assert len(counts) == len(WORST_EDGES) + 1
    worst = [max(k3(d) for d in several) for several in ds.values()]
    beyond = [sum(value > edge for value in worst) for edge in WORST_EDGES]
    assert [sum(counts[i + 1 :]) for i in range(len(WORST_EDGES))] == beyond
    assert sum(counts) == 3


def test_edges_are_eight_to_a_decade_and_every_decade_is_one():
    ratios = [math.log10(b / a) for a, b in pairwise(WORST_EDGES)]
    assert ratios == pytest.approx([1 / 8] * 64, abs=1e-3)
    assert {float(f"1e{e}") for e in range(-6, 3)} <= set(WORST_EDGES)


def test_a_record_comes_back_from_its_line(rollout, pair):
    record = record_of(summary_of(pair([rollout([-1.0, -2.0], [-1.1, -2.0])]), lags=2), time=1.5)
    assert type(record).model_validate_json(record.model_dump_json()) == record
    assert [cell.lag for cell in record.by_lag] == [2]
