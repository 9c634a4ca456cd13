"""A scored prompt's answer read as columns: the same numbers as Python's own JSON reader finds, or its value."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onepolicy.integrations.vllm.columns import OwnTokens, parsed
from onepolicy.records.tokens import TokenState

texts = st.text(max_size=8) | st.sampled_from(['"', "\\", '\\"', '"}}, {"7": {"logprob": -1.0', "\n", "é", "]", "🙂"])
entries = st.lists(
    st.tuples(st.integers(0, 2**31 - 1), st.floats(allow_nan=False, allow_infinity=False), st.integers(1, 9), texts),
    min_size=1,
    max_size=6,
)
spacings = st.sampled_from([(",", ":"), (", ", ": ")])


def listed(entries):
    """As vLLM lists a prompt of which no other tokens were asked for."""
    return [
        None,
        *({str(i): {"logprob": lp, "rank": rank, "decoded_token": text}} for i, lp, rank, text in entries),
    ]


def answer(prompt_logprobs, **more):
    return {"model": "m", "choices": [{"text": "x", "prompt_logprobs": prompt_logprobs}], "usage": {"n": 1}, **more}


@given(entries, spacings, st.booleans())
def test_columns_hold_what_the_entries_say(entries, spacing, escaped):
    found = parsed(json.dumps(answer(listed(entries)), separators=spacing, ensure_ascii=escaped).encode())
    own = found["choices"][0].pop("prompt_logprobs")
    assert isinstance(own, OwnTokens)
    assert found == {"model": "m", "choices": [{"text": "x"}], "usage": {"n": 1}}
    assert own.ids.tolist() == [-1, *(i for i, *_ in entries)]
    assert np.isnan(own.logprobs[0])
    assert own.logprobs[1:].tolist() == [lp for _, lp, *_ in entries]
    assert own.top1.tolist() == [-1, *(i if rank == 1 else -1 for i, _, rank, _ in entries)]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=8), st.lists(st.integers(0, 3), min_size=9, max_size=9))
def test_a_logprob_of_another_token_than_was_sent_is_none(said, sent):
    own = parsed(json.dumps(answer(listed([(i, -0.5, 2, "x") for i in said]))).encode())["choices"][0][
        "prompt_logprobs"
    ]
    sent = sent[: len(said) + 1]
    logprobs, states = own.column(np.asarray(sent, dtype=np.int32))
    same = np.asarray([False, *(a == b for a, b in zip(said, sent[1:], strict=True))])
    np.testing.assert_array_equal(logprobs, np.where(same, np.float32(-0.5), np.float32(np.nan)))
    np.testing.assert_array_equal(states, np.where(same, TokenState.VALUE, TokenState.ABSENT))


ONE = {"logprob": -1.0, "rank": 2, "decoded_token": "x"}


@pytest.mark.parametrize(
    "value",
    [
        answer(None),
        answer([]),
        answer([None]),
        answer([None, None, {"7": ONE}]),
        answer([{"7": ONE}, {"7": ONE}]),
        answer([None, {"7": ONE, "8": ONE}]),
        answer([None, {"7": ONE}, {"7": ONE, "8": ONE}]),
        answer([None, {"7": ONE}, None]),
        answer([None, {"7": ONE}, 5]),
        answer([None, {"7": ONE | {"logprob": None}}]),
        answer([None, {"7": ONE | {"logprob": "-1.0"}}]),
        answer([None, {"7": ONE | {"rank": None}}]),
        answer([None, {"7": ONE | {"rank": 1.5}}]),
        answer([None, {"7": ONE | {"decoded_token": None}}]),
        answer([None, {"7": ONE | {"more": 1}}]),
        answer([None, {"007": ONE}]),
        answer([None, {" 7": ONE}]),
        answer([None, {"7.0": ONE}]),
        answer([None, {"": ONE}]),
        answer([None, {"x": ONE}]),
        answer([None, {"7": {"rank": 2, "logprob": -1.0, "decoded_token": "x"}}]),
        answer([None, {"7": {"logprob": -1.0}}]),
        {"choices": [], "prompt_logprobs": [None, {"7": ONE}]},
        {"choices": [answer(None)["choices"][0], {"prompt_logprobs": [None, {"7": ONE}]}]},
        {"choices": {"prompt_logprobs": [None, {"7": ONE}]}},
        {"choices": [{"inside": {"prompt_logprobs": [None, {"7": ONE}]}}]},
        {"choices": [{"text": '"prompt_logprobs": [null, {"7": {"logprob": -1.0, "rank": 1, "decoded_token": "x"}}]'}]},
        [{"prompt_logprobs": [None, {"7": ONE}]}],
        {},
        7,
    ],
)
@pytest.mark.parametrize("spacing", [(",", ":"), (", ", ": ")])
def test_any_other_answer_is_read_as_it_stands(value, spacing):
    assert parsed(json.dumps(value, separators=spacing).encode()) == value


def test_what_json_does_not_have_is_read_as_it_stands():
    value = parsed(json.dumps(answer([None, {"7": ONE | {"logprob": float("-inf")}}])).encode())
    assert value["choices"][0]["prompt_logprobs"][1]["7"]["logprob"] == float("-inf")


def test_the_last_of_two_lists_counts_as_in_any_json():
    text = json.dumps(answer([None, {"7": ONE}])).replace('"text": "x"', '"prompt_logprobs": [null, {"8": {}}]')
    assert parsed(text.encode()) == json.loads(text)


def test_a_text_that_is_cut_anywhere_is_no_json():
    text = json.dumps(answer(listed([(7, -1.0, 1, "a"), (8, -2.0, 3, '"\\')]))).encode()
    for end in range(len(text)):
        with pytest.raises(ValueError, match=r"."):
            parsed(text[:end])


@pytest.mark.parametrize("number", [b"01", b"1.", b"-", b"1e", b"--1", b"1.5.5", b""])
def test_a_number_that_is_none_is_no_json(number):
    text = json.dumps(answer(listed([(7, -1.0, 1, "a")]))).encode()
    with pytest.raises(ValueError, match=r"."):
        parsed(text.replace(b"-1.0", number))


def test_a_token_that_no_engine_has_is_an_error_and_no_other_token():
    with pytest.raises(OverflowError):
        parsed(json.dumps(answer(listed([(2**40, -1.0, 1, "a")]))).encode())
