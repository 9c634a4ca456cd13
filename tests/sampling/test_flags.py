from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onepolicy.errors import UsageError
from onepolicy.sampling.flags import flags_of, written_flags

WORDS = st.text(alphabet="abcdefghij", min_size=1, max_size=6)
VALUES = st.one_of(
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    WORDS,
    st.just(True),
    st.dictionaries(WORDS, st.integers(), min_size=1),
)


@given(flags=st.dictionaries(WORDS.map(lambda word: f"x_{word}"), VALUES))
def test_written_flags_are_read_as_they_were(flags):
    assert flags_of(written_flags(flags), what="flags", aliases={}) == flags


@pytest.mark.parametrize(
    ("arguments", "flags"),
    [
        (["serve", "model", "--top-k", "5"], {"top_k": 5}),
        (["--top-k=5", "--top-k", "6"], {"top_k": 6}),
        (["--repeat-last-n", "-1"], {"repeat_last_n": -1}),
        (["--enforce-eager", "--port", "80"], {"enforce_eager": True, "port": 80}),
        (["--no-enable-prefix-caching"], {"enable_prefix_caching": False}),
        (["-n", "3"], {"n_predict": 3}),
        (["--a.b", "1", "--a.c", "x"], {"a": {"b": 1, "c": "x"}}),
        (["--json", '{"a": [1]}', "--bad", "{1"], {"json": {"a": [1]}, "bad": "{1"}),
        (["--template", "{{ x }}", "--on", "False"], {"template": "{{ x }}", "on": False}),
        ([], {}),
    ],
)
def test_arguments_are_names_and_values(arguments, flags):
    assert flags_of(arguments, what="flags", aliases={"n": "n_predict"}) == flags


def test_a_mapping_has_the_same_names():
    assert flags_of({"--top-k": 5, "max_model_len": 7}, what="flags", aliases={}) == {"top_k": 5, "max_model_len": 7}


def test_a_command_in_one_text_is_refused():
    with pytest.raises(UsageError, match="as a list"):
        flags_of("--top-k 5", what="flags", aliases={})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["vllm", "serve", "m", "\u2013\u2013max-model-len", "5"], "Type the dash anew"),
        (["\ufeff--max-model-len", "5"], "Type the dash anew"),
        (["temperature:", "0.5"], "neither a flag"),
        ([1, None], "neither a flag"),
    ],
)
def test_words_that_would_be_left_out_although_they_are_meant_as_settings_are_refused(arguments, said):
    with pytest.raises(UsageError, match=said):
        flags_of(arguments, what="vLLM's flags", aliases={})
    assert flags_of(["/opt/bin/vllm", "serve", "model"], what="flags", aliases={}) == {}


def test_json_that_goes_too_deep_is_text():
    assert flags_of(["--a", "[" * 10**5], what="flags", aliases={})["a"] == "[" * 10**5


def test_json_that_is_written_is_one_argument():
    assert json.loads(written_flags({"override": {"a": 1}})[1]) == {"a": 1}
