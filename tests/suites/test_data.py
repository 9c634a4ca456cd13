import hashlib
import re
from importlib.resources import files

import pytest

from onepolicy.suites import SUITES, load_suite

RELEASED = {
    "quick.v1.jsonl": "5c9e4fcbb13884c6681996379076bf1975733edf2268e7161b0d2edcef446335",
    "standard.v1.jsonl": "ba3c3950cce3db3c4a24d227fda3f205242de19f40299941a5a7f3511e95afdd",
    "fixed-quick.v1.jsonl": "5c33510e2918d6aecbcb2026d8b8e4870e68c8a37b4826b5258947e3b427d3d5",
    "fixed-standard.v1.jsonl": "c3fedc1778ffbcdd9897a1e5548cd51b2225c0b2e2107d5943c4b377492841f6",
}
FIXED = ("fixed-quick", "fixed-standard")


@pytest.mark.parametrize("name", RELEASED)
def test_a_released_file_is_never_edited(name):
    content = (files("onepolicy.suites") / "data" / name).read_bytes()
    assert hashlib.sha256(content).hexdigest() == RELEASED[name]


def test_every_shipped_suite_is_released_and_nothing_else_lies_beside_them():
    there = {path.name for path in (files("onepolicy.suites") / "data").iterdir()}
    assert set(SUITES.values()) == set(RELEASED) == there - {"README.md"}


@pytest.mark.parametrize(
    ("name", "prompts", "sequences"),
    [("quick", 32, 0), ("standard", 200, 0), ("fixed-quick", 0, 24), ("fixed-standard", 0, 120)],
)
def test_a_shipped_suite_loads_with_its_count_and_the_hash_of_its_file(name, prompts, sequences):
    suite = load_suite(name)
    assert (suite.name, len(suite.prompts), len(suite.sequences)) == (name, prompts, sequences)
    assert suite.is_fixed == bool(sequences)
    assert suite.hash == RELEASED[SUITES[name]][:16]


def test_ids_are_unique_across_all_suites():
    ids = [item.id for name in SUITES for item in (*load_suite(name).prompts, *load_suite(name).sequences)]
    assert len(ids) == len(set(ids))


def test_no_prompt_of_standard_is_in_quick_and_none_stands_twice():
    texts = [prompt.messages[-1]["content"] for name in ("quick", "standard") for prompt in load_suite(name).prompts]
    assert len(texts) == len(set(texts))


@pytest.mark.parametrize("name", ["quick", "standard"])
def test_every_prompt_ends_with_a_turn_of_the_user_and_says_its_language_and_kind(name):
    for prompt in load_suite(name).prompts:
        assert prompt.messages[-1]["role"] == "user", prompt.id
        assert prompt.tags.keys() == {"language", "kind"}, prompt.id


HARD = {
    "Chinese": r"[\u4e00-\u9fff]{4}",
    "Japanese": r"[\u3040-\u30ff]{2}",
    "Arabic": r"[\u0600-\u06ff]{2}",
    "Thai": r"[\u0e00-\u0e7f]{4}",
    "emoji joined by ZWJ": r"[\U0001f300-\U0001faff]\ufe0f?\u200d",
    "control characters": r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]",
    "runs of spaces": r" {8}",
    "runs of line ends": r"\n{3}",
    "text of special tokens": r"<\|(im_end|endoftext|eot_id)\|>",
}


@pytest.mark.parametrize("name", FIXED)
@pytest.mark.parametrize("kind", HARD)
def test_fixed_completions_hold_every_kind_of_hard_text(name, kind):
    assert any(re.search(HARD[kind], sequence.completion) for sequence in load_suite(name).sequences)


@pytest.mark.parametrize(("name", "length"), [("fixed-quick", 9_000), ("fixed-standard", 16_000)])
def test_one_fixed_completion_is_very_long(name, length):
    lengths = sorted(len(sequence.prompt + sequence.completion) for sequence in load_suite(name).sequences)
    assert lengths[-1] > length
    assert lengths[-2] < 4_000
