"""The oracle is numpy.nextafter, one step after the other; for bfloat16 torch's own."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onepolicy.numerics.ulp import is_nan, ulp_distance, values_of_bits

STEPS = st.integers(min_value=0, max_value=40)
INTEGERS = {np.float32: np.uint32, np.float16: np.uint16}


def distance(a, b, kind) -> int:
    bits = [np.array([one], dtype=kind).view(INTEGERS[kind]) for one in (a, b)]
    return int(ulp_distance(*bits)[0])


def stepped(value, steps, towards, kind):
    with np.errstate(all="ignore"):
        for _ in range(steps):
            value = np.nextafter(value, kind(towards))
    return value


@pytest.mark.parametrize("kind", [np.float32, np.float16])
@given(data=st.data(), steps=STEPS, towards=st.sampled_from([np.inf, -np.inf]))
def test_so_many_steps_of_nextafter_are_so_many_ulp(kind, data, steps, towards):
    start = kind(data.draw(st.floats(width=8 * kind(0).itemsize, allow_nan=False)))
    end = stepped(start, steps, towards, kind)
    reached = abs(steps) if np.isfinite(end) or np.isinf(start) else None
    if np.isinf(start) and math.copysign(1, start) == math.copysign(1, towards):
        reached = 0
    if reached is not None:
        assert distance(start, end, kind) == distance(end, start, kind) == reached


@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_zeros_of_both_signs_are_equal_and_neighbours_of_the_smallest_numbers(kind):
    tiny = np.nextafter(kind(0), kind(1))
    assert distance(kind(0.0), kind(-0.0), kind) == 0
    assert distance(-tiny, tiny, kind) == 2
    assert distance(np.finfo(kind).max, kind(np.inf), kind) == 1
    assert distance(kind(1), kind(1) + np.finfo(kind).eps, kind) == 1
    assert distance(kind(2), kind(1), kind) == 2 ** np.finfo(kind).nmant


def test_the_largest_distance_is_no_overflow():
    assert distance(np.float32(-np.inf), np.float32(np.inf), np.float32) == 2 * 0x7F800000


@given(st.integers(min_value=0, max_value=0xFFFF), STEPS)
def test_bfloat16_steps_as_the_upper_half_of_float32(start, steps):
    """The next bfloat16 is 65536 steps of float32 away, below and above zero alike."""
    bits = np.array([start], dtype=np.uint16)
    if is_nan(bits, "bfloat16")[0]:
        return
    value = values_of_bits(bits, "bfloat16")
    moved = ((value.view(np.int32).astype(np.int64) & 0x7FFFFFFF) >> 16) + steps
    if moved[0] > 0x7F80:
        return
    away = np.array([(start & 0x8000) | int(moved[0])], dtype=np.uint16)
    assert ulp_distance(bits, away)[0] == steps
    wide = [values_of_bits(one, "bfloat16").view(np.uint32) for one in (bits, away)]
    assert ulp_distance(*wide)[0] == steps * 65536


@pytest.mark.parametrize(("dtype", "kind"), [("float32", np.float32), ("float16", np.float16)])
def test_bits_are_the_numbers_and_nan_is_found(dtype, kind):
    numbers = np.array([0.0, -1.5, np.inf, np.nan, 6e-8], dtype=kind)
    bits = numbers.view(INTEGERS[kind])
    assert np.array_equal(values_of_bits(bits, dtype), numbers.astype(np.float32), equal_nan=True)
    assert is_nan(bits, dtype).tolist() == [False, False, False, True, False]
