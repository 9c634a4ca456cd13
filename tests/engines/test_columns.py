"""Server lists as arrays: what is a number, and lists that do not depend on what was sampled."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onepolicy.engines.columns import column, reported, top_lists, without_sampled
from onepolicy.errors import EngineError
from onepolicy.records.reading import TopLists
from onepolicy.records.tokens import TokenState

vocabularies = st.lists(st.integers(-12, 0), min_size=8, max_size=24).map(lambda steps: [step / 4 for step in steps])
"""logprobs in bfloat16-like steps, so that there are ties"""


def as_listed(logprobs: list[float], sampled: int, size: int) -> dict[int, float]:
    """As a server lists it: the sampled token first, whether it belongs there or not."""
    order = sorted(range(len(logprobs)), key=lambda token: (-logprobs[token], token))[:size]
    return {token: logprobs[token] for token in [sampled, *(token for token in order if token != sampled)]}


@given(vocabularies, st.integers(1, 6))
def test_a_list_is_the_same_whichever_token_was_sampled(logprobs, size):
    lists = [
        top_lists("r", [without_sampled(as_listed(logprobs, sampled, size), sampled, size=size)], size=size)
        for sampled in range(len(logprobs))
    ]
    for one in lists:
        np.testing.assert_array_equal(one.ids, lists[0].ids)
        np.testing.assert_array_equal(one.logprobs, lists[0].logprobs)


def test_minus_infinity_is_a_number_in_a_list_of_a_distribution_in_which_tokens_are_cut_and_nowhere_else():
    listed = {3: -0.1, 5: -9999.0, 7: None, 9: math.nan, 11: 0.5, 2: -3.4e38}
    cut = top_lists("r", [listed], size=6, truncates=True)
    assert cut.ids[0, 0] == 3
    assert dict(zip(cut.ids[0].tolist(), map(str, cut.logprobs[0].tolist()), strict=True)) == {
        3: str(float(np.float32(-0.1))), 5: "-inf", 2: "-inf", 7: "nan", 9: "nan", 11: "nan"
    }  # fmt: skip
    assert np.isfinite(top_lists("r", [listed], size=6).logprobs).sum() == 1
    assert not np.isinf(top_lists("r", [listed], size=6).logprobs).any()


@given(vocabularies, st.integers(1, 6), st.randoms())
def test_a_list_is_the_same_in_whichever_order_it_comes(logprobs, size, random):
    listed = dict(enumerate(logprobs))
    shuffled = list(listed.items())
    random.shuffle(shuffled)
    first, second = (top_lists("r", [one], size=size) for one in (listed, dict(shuffled)))
    np.testing.assert_array_equal(first.ids, second.ids)


@pytest.mark.parametrize(
    ("value", "state"),
    [
        (-0.5, TokenState.VALUE),
        (0, TokenState.VALUE),
        (None, TokenState.ABSENT),
        (math.nan, TokenState.INVALID),
        (-math.inf, TokenState.INVALID),
        (-9999.0, TokenState.INVALID),
        (-3.4028234663852886e38, TokenState.INVALID),
        (-1.7e308, TokenState.INVALID),
        (0.25, TokenState.INVALID),
    ],
)
def test_each_value_gets_its_state(value, state):
    numbers, states = column("r", [value, -1.0], length=2)
    assert states.tolist() == [state, TokenState.VALUE]
    assert np.isnan(numbers[0]) == (state != TokenState.VALUE)


@pytest.mark.parametrize("given", [None, [], [-1.0], [-1.0] * 3, "no list"])
def test_more_or_fewer_values_than_tokens_are_an_error(given):
    with pytest.raises(EngineError, match="for 2 tokens"):
        column("r", given, length=2)


@pytest.mark.parametrize("odd", ["-1.0", True, [], {"logprob": -1.0}])
def test_what_is_no_number_is_an_error(odd):
    with pytest.raises(EngineError, match="stands where a logprob belongs"):
        column("r", [odd, -1.0], length=2)


def test_a_token_that_is_in_no_list_is_reported_without_a_value():
    ids = np.asarray([[7, 8], [9, 7]], dtype=np.int32)
    report = TopLists(positions=np.asarray([3, 5], dtype=np.int32), ids=ids, logprobs=np.zeros((2, 2), np.float32))
    found = reported("r", report, {3: {7: -0.5, 1: -2.0}, 5: {7: -9999.0, 9: None}}.__getitem__)
    np.testing.assert_array_equal(found.logprobs, np.asarray([[-0.5, np.nan], [np.nan, np.nan]], np.float32))
