"""p-values against all labellings of a small comparison, and against what must not change them."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from onepolicy.behaviour.metrics import Metric
from onepolicy.behaviour.permutation import permutation_test
from onepolicy.behaviour.table import table_of

FIRST = Metric(name="first", kind="rate", unit="rate", of=lambda one: float(one.token_ids[0]))
LAST = Metric(name="last", kind="rate", unit="rate", of=lambda one: float(one.token_ids[-1]))
CONSTANT = Metric(name="constant", kind="rate", unit="rate", of=lambda one: 1.0)
A = [[(3, 1), (4, 5)], [(2, 6), (5, 5)], [(1, 9), (2, 6)]]
B = [[(8, 2), (9, 5)], [(7, 3), (6, 8)], [(4, 4), (9, 7)]]


@pytest.fixture
def table(pair):
    return table_of(
        [pair(f"p{i}", "token_ids", a, b) for i, (a, b) in enumerate(zip(A, B, strict=True))], [FIRST, LAST]
    )


def every_labelling():
    """All 6^3 differences of the two metrics, by enumeration with plain loops."""
    halves = list(itertools.combinations(range(4), 2))
    pooled = [np.array([*a, *b], dtype=float) for a, b in zip(A, B, strict=True)]
    found = []
    for choice in itertools.product(halves, repeat=3):
        of_b = [[i in half for i in range(4)] for half in choice]
        found.append(
            np.mean([x[np.array(y)].mean(0) - x[~np.array(y)].mean(0) for x, y in zip(pooled, of_b, strict=True)], 0)
        )
    return np.array(found)


def test_the_p_value_is_the_share_of_all_labellings_up_to_the_number_drawn(pair):
    pairs = [pair(f"p{i}", "token_ids", [a[0], a[1]], [b[0], b[1]]) for i, (a, b) in enumerate(zip(A, B, strict=True))]
    tested = permutation_test(without_similarity(table_of(pairs, [FIRST, LAST])), permutations=20_000)
    every = every_labelling()
    observed = np.mean([np.mean(b, 0) - np.mean(a, 0) for a, b in zip(A, B, strict=True)], 0)
    scaled = np.abs(every / np.sqrt((every**2).mean(0)))
    sizes = np.abs(observed) / np.sqrt((every**2).mean(0))
    expected = [(scaled.max(1) >= size - 1e-9).mean() for size in sizes]
    assert tested.difference == pytest.approx(observed)
    assert tested.p == pytest.approx(expected, abs=0.012)
    assert tested.spread == pytest.approx(np.sqrt((every**2).mean(0)), rel=0.03)


def without_similarity(table):
    return replace(table, blocks=tuple(replace(block, similarity=None) for block in table.blocks))


def test_no_p_value_is_below_one_over_the_labellings(table):
    tested = permutation_test(table, permutations=19)
    assert tested.p.min() >= 1 / 20


def test_what_never_varies_has_p_one_and_changes_no_other(pair):
    pairs = [pair(f"p{i}", "token_ids", a, b) for i, (a, b) in enumerate(zip(A, B, strict=True))]
    alone = permutation_test(table_of(pairs, [FIRST]), permutations=200)
    beside = permutation_test(table_of(pairs, [CONSTANT, FIRST]), permutations=200)
    assert beside.p[0] == 1.0
    assert beside.spread[0] == 0.0
    assert beside.p[1:] == pytest.approx(alone.p)


def test_more_metrics_make_each_of_them_less_certain(pair):
    pairs = [pair(f"p{i}", "token_ids", a, b) for i, (a, b) in enumerate(zip(A, B, strict=True))]
    one = permutation_test(without_similarity(table_of(pairs, [FIRST])), permutations=999)
    two = permutation_test(without_similarity(table_of(pairs, [FIRST, LAST])), permutations=999)
    assert two.p[0] > one.p[0]
    assert two.critical > one.critical


def test_the_same_seed_gives_the_same_p_values(table):
    assert permutation_test(table, seed=4).p.tolist() == permutation_test(table, seed=4).p.tolist()


def test_identical_sides_differ_in_nothing(pair):
    pairs = [pair(f"p{i}", "token_ids", a, a) for i, a in enumerate(A)]
    tested = permutation_test(table_of(pairs, [FIRST, LAST]), permutations=500)
    assert tested.p.tolist() == [1.0] * 4
