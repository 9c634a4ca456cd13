import hashlib
import math
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onepolicy.records.tokens import TokenState, digest_of_ids, states_of

VALUE, INVALID = TokenState.VALUE, TokenState.INVALID


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("number", "state"),
    [
        (-1.0, VALUE),
        (0.0, VALUE),
        (-0.0, VALUE),
        (1e-6, VALUE),
        (1.01e-6, INVALID),
        (0.5, INVALID),
        (-999.99, VALUE),
        (-1000.0, INVALID),
        (-9999.0, INVALID),
        (-3.4e38, INVALID),
        (math.nan, INVALID),
        (math.inf, INVALID),
        (-math.inf, INVALID),
    ],
)
def test_a_logprob_is_finite_at_most_rounding_above_zero_and_above_minus_a_thousand(dtype, number, state):
    assert states_of(np.array([number], dtype=dtype)).tolist() == [state]


def test_states_have_the_shape_of_the_numbers_and_one_byte_each():
    states = states_of(np.array([[-1.0, math.nan], [-2.0, 3.0]], dtype=np.float32))
    assert states.dtype == np.uint8
    assert states.tolist() == [[VALUE, INVALID], [VALUE, INVALID]]


def test_states_are_written_as_these_numbers():
    assert [(state.name, int(state)) for state in TokenState] == [
        ("VALUE", 0),
        ("MASKED", 1),
        ("INVALID", 2),
        ("ABSENT", 3),
        ("TRUNCATED", 4),
        ("EXCLUDED", 5),
    ]


@given(st.lists(st.integers(0, 2**31 - 1), max_size=20))
def test_a_digest_is_the_hash_of_little_endian_int32(ids):
    expected = hashlib.sha256(struct.pack(f"<{len(ids)}i", *ids)).hexdigest()[:16]
    for dtype in (np.int32, np.int64, ">i4"):
        assert digest_of_ids(np.array(ids, dtype=dtype)) == expected


def test_a_digest_is_the_same_for_a_view_and_differs_with_the_order():
    ids = np.arange(10, dtype=np.int32)
    assert digest_of_ids(ids[::2]) == digest_of_ids(np.array([0, 2, 4, 6, 8]))
    assert digest_of_ids(ids) != digest_of_ids(ids[::-1])
    assert digest_of_ids(np.array([1, 2, 3])) == "4636993d3e1da4e9"
