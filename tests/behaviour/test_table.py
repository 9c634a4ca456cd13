"""Similarity and differences against loops that share no code with them."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onepolicy.behaviour.metrics import Metric
from onepolicy.behaviour.similarity import rouge_l, similarity_matrix
from onepolicy.behaviour.table import table_of

TOKENS = st.lists(st.integers(0, 4), min_size=1, max_size=12)
LENGTH = Metric(name="length", kind="length", unit="tokens", of=lambda one: float(len(one.token_ids)))
FIRST = Metric(name="first", kind="rate", unit="rate", of=lambda one: float(one.token_ids[0] == 1))


def longest_common(a, b):
    """The textbook recursion."""
    best = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i, j in itertools.product(range(len(a)), range(len(b))):
        best[i + 1][j + 1] = best[i][j] + 1 if a[i] == b[j] else max(best[i][j + 1], best[i + 1][j])
    return best[-1][-1]


@given(TOKENS, TOKENS)
def test_rouge_l_is_the_f1_of_the_longest_common_subsequence(a, b):
    common = longest_common(a, b)
    precision, recall = common / len(a), common / len(b)
    expected = 2 * precision * recall / (precision + recall) if common else 0.0
    assert rouge_l(a, b) == pytest.approx(expected, abs=1e-12)


def test_rouge_l_sees_chinese_tokens_where_words_between_spaces_would_be_one():
    a, b = "今天天气很好".encode("utf-16-be"), "今天天气不好".encode("utf-16-be")
    assert rouge_l(list(a)[::1], list(a)) == 1.0
    assert rouge_l([1, 2, 2, 3, 4, 5], [1, 2, 2, 3, 6, 5]) == pytest.approx(10 / 12)
    assert 0.5 < rouge_l(list(a), list(b)) < 1.0


def test_nothing_is_similar_to_itself_in_the_matrix():
    found = similarity_matrix([(1, 2), (1, 2), (3,)])
    assert found.tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 0]]


@pytest.fixture
def pairs(pair):
    """Prompts with (3, 2), (2, 2) and (1, 2) samples."""
    rng = np.random.default_rng(3)

    def some(count):
        return [tuple(rng.integers(0, 3, rng.integers(1, 9)).tolist()) for _ in range(count)]

    shapes = [(3, 2), (2, 2), (3, 2), (1, 2)]
    return [pair(f"p{i}", "token_ids", some(a), some(b)) for i, (a, b) in enumerate(shapes)]


def by_loops(pairs, labels):
    """The four differences under one labelling: {prompt: [is of B]}."""
    lengths, firsts, own, content = [], [], [], []
    for pair in pairs:
        ids = [one.token_ids for one in pair.both]
        sides = [
            [x for x, of_b in zip(ids, labels[pair.prompt_id], strict=True) if of_b is side] for side in (False, True)
        ]
        a, b = sides
        pooled = np.mean([len(x) for x in ids])
        lengths.append((np.mean([len(x) for x in b]) - np.mean([len(x) for x in a])) / pooled)
        firsts.append(np.mean([x[0] == 1 for x in b]) - np.mean([x[0] == 1 for x in a]))
        if min(len(a), len(b)) >= 2:
            within = [np.mean([rouge_l(x, y) for x, y in itertools.combinations(side, 2)]) for side in sides]
            across = np.mean([rouge_l(x, y) for x in a for y in b])
            own.append(within[1] - within[0])
            content.append(np.mean(within) - across)
    return [np.mean(lengths), np.mean(firsts), np.mean(own), np.mean(content)]


def test_differences_are_what_loops_over_the_completions_give(pairs):
    table = table_of(pairs, [LENGTH, FIRST])
    labels = {p.prompt_id: [False] * len(p.a) + [True] * len(p.b) for p in pairs}
    found = table.differences([block.labels for block in table.blocks])
    assert table.names == ("length", "first", "self_similarity", "content")
    assert found[0] == pytest.approx(by_loops(pairs, labels), abs=1e-12)


def test_another_labelling_is_another_difference_and_still_that_of_the_loops(pairs):
    table = table_of(pairs, [LENGTH, FIRST])
    flipped = {p.prompt_id: [True] * len(p.b) + [False] * len(p.a) for p in pairs}
    blocks = {(3, 2): ["p0", "p2"], (2, 2): ["p1"], (1, 2): ["p3"]}
    given_labels = [np.array([[flipped[name] for name in names]], dtype=np.float64) for names in blocks.values()]
    assert table.differences(given_labels)[0] == pytest.approx(by_loops(pairs, flipped), abs=1e-12)


def test_similarities_are_means_over_the_prompts_that_have_them(pairs):
    found = table_of(pairs, [LENGTH]).similarities()
    known = [p for p in pairs if len(p.a) >= 2]
    expected = np.mean([np.mean([rouge_l(x.token_ids, y.token_ids) for x in p.a for y in p.b]) for p in known])
    assert found.prompts == 3
    assert found.across == pytest.approx(expected)


def test_one_sample_of_each_prompt_has_no_similarity(pair):
    table = table_of([pair("p", "token_ids", [(1,)], [(2, 3)])], [LENGTH])
    assert table.names == ("length",)
    assert np.isnan(table.similarities().across)
