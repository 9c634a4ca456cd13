"""Each metric on completions whose value can be counted by hand."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onepolicy.behaviour.metrics import Asked, has_keyword, is_blank, length, metrics_of, repetition_rate


def values(completions, asked=Asked()):
    metrics, _ = metrics_of(completions, asked)
    return {metric.name: [metric.of(one) for one in completions] for metric in metrics}


def repeated_by_counting(ids, n):
    seen, repeated, total = [], 0, 0
    for i in range(len(ids) - n + 1):
        total += 1
        repeated += ids[i : i + n] in seen
        seen.append(ids[i : i + n])
    return repeated / total if total else 0.0


def test_length_counts_tokens_and_the_end_token_is_one():
    assert length([5, 6, 2]) == 3.0


@pytest.mark.parametrize(
    ("ids", "rate"),
    [([], 0.0), ([1, 1, 1], 0.0), ([1, 2, 3, 4, 5, 6, 7], 0.0), ([1] * 8, 4 / 5), ([1, 2, 3, 4, 1, 2, 3, 4], 1 / 5)],
)
def test_repetition_is_the_share_of_4_grams_that_stood_there_before(ids, rate):
    assert repetition_rate(ids) == rate


@given(st.lists(st.integers(0, 3), max_size=30), st.integers(1, 5))
def test_repetition_is_what_counting_one_by_one_gives(ids, n):
    assert repetition_rate(ids, n=n) == repeated_by_counting(ids, n)


@pytest.mark.parametrize("text", ["", " \n\t", "\u3000"])
def test_white_space_alone_is_blank_also_the_wide_one(text):
    assert is_blank(text)


def test_a_keyword_is_found_inside_words_in_any_case_and_script():
    assert has_keyword("As an AI language model", "ai LANGUAGE")
    assert has_keyword("床前明月光，疑是地上霜。", "明月")
    assert not has_keyword("床前明月光", "太阳")


def test_chinese_completions_have_every_metric(one):
    completions = [one(token_ids=tuple("明月光明月光明".encode()), text="明月光明月光明"), one(token_ids=(2,), text="")]
    found = values(completions, Asked(keywords=("月",), parses=lambda text: bool(re.search("^明.*明$", text))))
    assert found == {
        "length": [21.0, 1.0],
        "repetition": [9 / 18, 0.0],
        "blank": [0.0, 1.0],
        "keyword 月": [1.0, 0.0],
        "parses": [1.0, 0.0],
    }


def test_every_finish_reason_but_stop_is_a_rate(one):
    completions = [one(finish_reason=reason) for reason in ("stop", "length", "abort", "length")]
    found = values(completions)
    assert found["finish length"] == [0.0, 1.0, 0.0, 1.0]
    assert found["finish abort"] == [0.0, 0.0, 1.0, 0.0]
    assert "finish stop" not in found


def test_what_is_not_known_of_one_completion_is_compared_for_none_and_said(one):
    metrics, notes = metrics_of([one(), one(text=None, finish_reason="")], Asked(keywords=("a",)))
    assert [metric.name for metric in metrics] == ["length", "repetition"]
    assert "1 of 2 completions have no text" in notes[0]
    assert "finish reasons are not known" in notes[1]
