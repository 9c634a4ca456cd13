"""Buckets against a loop that shares no code with them, and a sample that does not depend on how tokens come in."""

import json
import math

import numpy as np
import pytest

from onepolicy.numerics.buckets import (
    MOST_TAG_VALUES,
    MOST_TAGS,
    Buckets,
    TokenClasses,
    confidence_buckets,
    confidence_names,
    position_buckets,
    position_names,
)
from onepolicy.numerics.sample import TokenSample
from onepolicy.records.tokens import TokenState

CLASSES = TokenClasses(names=("unknown", "even", "odd"), of_id=(np.arange(40) % 2 + 1).astype(np.uint8))


def tagged(pair, rows, tags):
    found = pair(rows)
    found.rollouts.tags[:] = [json.dumps(tag) for tag in tags]
    return found


@pytest.fixture
def rows(many):
    rows = many(9, scale=0.3, length=21)
    for i, row in enumerate(rows):
        row["p_states"] = [TokenState.ABSENT if (i + j) % 7 == 0 else TokenState.VALUE for j in range(21)]
        row["sampled"] = [j >= i for j in range(21)]
        row["language"] = ("en", "zh")[i % 2]
    return rows


def gathered(parts, classes=CLASSES):
    buckets = Buckets(classes=classes)
    for part in parts:
        buckets.add(part)
    return buckets


def expected(rows, key):
    """name -> [d of its tokens], by hand."""
    found = {}
    for row in rows:
        position = 0
        for j in range(len(row["p"])):
            position += row["sampled"][j]
            if row["sampled"][j] and row["p_states"][j] == TokenState.VALUE:
                p, q = (float(np.float32(row[side][j])) for side in ("p", "q"))
                found.setdefault(key(row, j, position, p), []).append(q - p)
    return found


def confidence_by_hand(p):
    names = ("0 to 0.01", "0.01 to 0.1", "0.1 to 0.25", "0.25 to 0.5", "0.5 to 0.75", "0.75 to 0.9", "0.9 to 0.99")
    for name in (*names, "0.99 to 0.999"):
        if math.exp(p) < float(name.split()[-1]):
            return name
    return "0.999 to 1"


def position_by_hand(n):
    low = 1
    while low * 2 <= n:
        low *= 2
    return "1" if low == 1 else f"{low:,} to {low * 2 - 1:,}"


@pytest.mark.parametrize(
    ("axis", "key"),
    [
        ("position", lambda row, j, position, p: position_by_hand(position)),
        ("confidence", lambda row, j, position, p: confidence_by_hand(p)),
        ("token class", lambda row, j, position, p: ("even", "odd")[row["ids"][j] % 2]),
        ("language", lambda row, j, position, p: row["language"]),
    ],
)
def test_a_bucket_holds_the_tokens_that_it_names(axis, key, rows, pair):
    table = next(t for t in gathered([pair(rows)]).tables() if t.axis == axis)
    by_hand = expected(rows, key)
    assert {b.name for b in table.buckets} == set(by_hand)
    for bucket in table.buckets:
        d = np.array(by_hand[bucket.name])
        assert bucket.tokens == len(d)
        assert bucket.mean_d == pytest.approx(d.mean())
        assert bucket.mean_abs_d == pytest.approx(np.abs(d).mean())
        assert bucket.mean_k3 == pytest.approx((np.exp(d) - 1 - d).mean())
        assert bucket.max_abs_d == pytest.approx(np.abs(d).max())


def test_blocks_one_after_the_other_are_one_block(rows, pair):
    whole = gathered([pair(rows)])
    parts = gathered([pair(rows[:2]), pair(rows[2:3]), pair(rows[3:])])
    assert [t.axis for t in whole.tables()] == [t.axis for t in parts.tables()]
    for one, other in zip(whole.tables(), parts.tables(), strict=True):
        for a, b in zip(one.buckets, other.buckets, strict=True):
            assert (a.name, a.tokens, a.max_abs_d) == (b.name, b.tokens, b.max_abs_d)
            assert (a.mean_d, a.mean_k3) == pytest.approx((b.mean_d, b.mean_k3), rel=1e-9)
    assert whole.histogram() == parts.histogram()
    assert (whole.equal, whole.outside_clip) == (parts.equal, parts.outside_clip)


def test_the_histogram_counts_every_token_once_by_size_and_sign(rollout, pair):
    p = [-1.0, -1.0, -1.0, -1.0, -1.0]
    d = [0.0, 0.25, 0.3, -0.5, -0.125]
    buckets = gathered([pair([rollout(p, [a + b for a, b in zip(p, d, strict=True)])])])
    bins = {b.low: (b.trainer_lower, b.trainer_higher) for b in buckets.histogram()}
    assert bins == {0.125: (1, 0), 0.25: (0, 2), 0.5: (1, 0)}
    assert buckets.equal == 1
    assert buckets.outside_clip == 3  # exp(0.25), exp(0.3) and exp(-0.5)


def test_edges_belong_where_their_names_say():
    assert [position_names()[i] for i in position_buckets(np.array([1, 2, 3, 4, 7, 8], dtype=np.int32))] == [
        "1", "2 to 3", "2 to 3", "4 to 7", "4 to 7", "8 to 15",
    ]  # fmt: skip
    probabilities = np.array([1e-30, 0.01, 0.0999, 0.5, 0.9995, 1.0, 1.0000005])
    names = [confidence_names()[i] for i in confidence_buckets(np.log(probabilities).astype(np.float32))]
    assert names == ["0 to 0.01", "0.01 to 0.1", "0.01 to 0.1", "0.5 to 0.75", *["0.999 to 1"] * 3]


def test_ids_beyond_the_vocabulary_are_unknown():
    assert CLASSES.of(np.array([-1, 0, 39, 40, 2**31 - 1], dtype=np.int32)).tolist() == [0, 1, 2, 0, 0]
    assert TokenClasses().of(np.array([5], dtype=np.int32)).tolist() == [0]


def test_a_tag_with_a_value_for_each_prompt_does_not_grow_without_end(rollout, pair):
    rows = [rollout([-1.0], [-1.5], name=f"r{i}") for i in range(300)]
    tags = [{"id": str(i), f"key{i}": "x"} for i in range(300)]
    tables = [t for t in gathered([tagged(pair, rows, tags)]).tables() if t.is_tag]
    assert len(tables) <= MOST_TAGS + 1
    by_id = next(t for t in tables if t.axis == "id")
    assert len(by_id.buckets) <= MOST_TAG_VALUES + 1
    assert sum(b.tokens for b in by_id.buckets) == 300


def sampled(parts, size):
    sample = TokenSample(size=size)
    for part in parts:
        sample.add(part)
    return sample


@pytest.mark.parametrize("size", [5, 60, 10_000])
def test_the_sample_does_not_depend_on_the_blocks(size, many, pair):
    rows = many(20, scale=0.1)
    whole = sampled([pair(rows)], size)
    for parts in ([rows[:1], rows[1:]], [[row] for row in reversed(rows)]):
        other = sampled([pair(part) for part in parts], size)
        assert (whole.keys == other.keys).all()
        assert (whole.rollout == other.rollout).all()
        assert (whole.trainer == other.trainer).all()
    assert len(whole.keys) == min(size, 800)


def test_every_token_is_as_likely_to_be_sampled(rollout, pair):
    rows = [rollout(-np.arange(1.0, 101), -np.arange(1.0, 101), name=f"r{i}") for i in range(200)]
    positions = -sampled([pair(rows)], 4000).rollout
    counts = np.histogram(positions, bins=10, range=(1, 101))[0]
    chi_squared = ((counts - 400) ** 2 / 400).sum()
    assert chi_squared < 27.9  # 9 degrees of freedom, one in a thousand
