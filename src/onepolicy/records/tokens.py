"""Arrays over the tokens of a rollout: their types, the state of a value, and the digest of the ids."""

from __future__ import annotations

import hashlib
from enum import IntEnum
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

FloatArray: TypeAlias = npt.NDArray[np.floating]
Float32: TypeAlias = npt.NDArray[np.float32]
Float64: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.int32]
BoolArray: TypeAlias = npt.NDArray[np.bool_]
StateArray: TypeAlias = npt.NDArray[np.uint8]

LARGEST_ROUNDING = 1e-6
"""A logprob up to this much above zero is rounding of a float32 log-softmax; above it is no logprob."""


class TokenState(IntEnum):
    """Why a position of a reading has a number, or has none. Only VALUE carries a number."""

    VALUE = 0
    MASKED = 1
    """nobody asked for it (the prompt, a tool's answer)"""
    INVALID = 2
    """the engine gave something that is no logprob: NaN, an infinity, a sentinel, a positive number"""
    ABSENT = 3
    """asked for, and the engine gave nothing"""
    TRUNCATED = 4
    """the sequence was longer than the engine takes"""
    EXCLUDED = 5
    """the distribution gives the token no probability: top_k, top_p or min_p cut it, and its logprob is -infinity"""


def digest_of_ids(token_ids: npt.NDArray[np.integer]) -> str:
    """The first 16 hex digits of the SHA-256 of the ids as little-endian int32.

    Shape: [T]. A reading carries it for each rollout, so that it cannot be attached to other ids.
    """
    return hashlib.sha256(np.ascontiguousarray(token_ids, dtype="<i4").tobytes()).hexdigest()[:16]


def states_of(logprobs: FloatArray, *, truncates: bool = False) -> StateArray:
    """VALUE where the number is a logprob, INVALID where it is not.

    truncates: whether the numbers were computed here under a meaning that cuts tokens; minus infinity is EXCLUDED then.
    Shape: [T] -> [T]. A logprob is finite, at most `LARGEST_ROUNDING`, and above -1000: engines write -9999.0 or
    about -3.4e38 for "none", and no float32 log-softmax over a vocabulary comes near -1000.
    """
    with np.errstate(invalid="ignore"):  # a comparison with NaN is false, and an infinity is beyond one of the ends
        good = (logprobs <= LARGEST_ROUNDING) & (logprobs > -1000.0)
    states: StateArray = np.where(good, np.uint8(TokenState.VALUE), np.uint8(TokenState.INVALID))
    return np.where(np.isneginf(logprobs), np.uint8(TokenState.EXCLUDED), states) if truncates else states
