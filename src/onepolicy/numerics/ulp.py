"""Distance between two floating numbers in units in the last place, exactly, by integers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Bits = npt.NDArray[np.uint16] | npt.NDArray[np.uint32]
"""floating numbers as their bits: bfloat16 and float16 in 16, float32 in 32"""
FORMATS = {"float32": np.uint32, "bfloat16": np.uint16, "float16": np.uint16}
"""dtype by torch's name -> the integers that its bits are read as"""
_INFINITY = {"float32": 0x7F800000, "bfloat16": 0x7F80, "float16": 0x7C00}


def ulp_distance(a: Bits, b: Bits) -> npt.NDArray[np.int64]:
    """How many representable numbers lie between the two, the farther one counted.

    0 for equal numbers, +0 and -0 among them; 1 for neighbours, across zero and into infinity too. All numbers of one
    sign are ordered as their bits are, whatever the format, so the distance is a difference of integers.
    Without meaning for NaN.

    Shape: [...], [...] of one dtype -> [...].
    """
    distance: npt.NDArray[np.int64] = np.abs(_ordered(a) - _ordered(b))
    return distance


def is_nan(bits: Bits, dtype: str) -> npt.NDArray[np.bool_]:
    """Where the bits are a NaN of this dtype. Shape: [...] -> [...]."""
    magnitude = np.iinfo(bits.dtype).max >> 1
    found: npt.NDArray[np.bool_] = (bits & bits.dtype.type(magnitude)) > _INFINITY[dtype]
    return found


def values_of_bits(bits: Bits, dtype: str) -> npt.NDArray[np.float32]:
    """The numbers, each of which float32 holds exactly. Shape: [...] -> [...]."""
    if dtype == "bfloat16":
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    numbers: npt.NDArray[np.float32] = bits.view(dtype).astype(np.float32, copy=False)
    return numbers


def _ordered(bits: Bits) -> npt.NDArray[np.int64]:
    """Whole numbers in the order of the floating ones: sign and magnitude as one integer."""
    most = np.iinfo(bits.dtype).max >> 1
    magnitude = (bits & bits.dtype.type(most)).astype(np.int64)
    return np.where(bits > most, -magnitude, magnitude)
