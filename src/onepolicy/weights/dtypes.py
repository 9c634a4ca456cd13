"""Dtypes of weights by torch's names, and rounding from one floating dtype to another as torch does it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from onepolicy.errors import UsageError
from onepolicy.records.tokens import FloatArray

Bytes = npt.NDArray[np.uint8]
"""[N] raw bytes, little-endian"""

SAFETENSORS = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
    "C64": "complex64",
}
"""name in a safetensors header -> torch's"""

_NUMPY = {
    "float64": "<f8",
    "float32": "<f4",
    "float16": "<f2",
    "int64": "<i8",
    "int32": "<i4",
    "int16": "<i2",
    "int8": "<i1",
    "uint64": "<u8",
    "uint32": "<u4",
    "uint16": "<u2",
    "uint8": "<u1",
    "bool": "<u1",
}
ROUNDED = ("float32", "bfloat16", "float16")
"""what weights can be rounded to before they are compared"""
_FLOATING = ("float64", *ROUNDED)


def item_size(dtype: str) -> int:
    """Bytes of one value. Raises: UsageError for a dtype without a known one."""
    if dtype.startswith("float8"):
        return 1
    sizes = {name: np.dtype(code).itemsize for name, code in _NUMPY.items()} | {"bfloat16": 2, "complex64": 8}
    if dtype not in sizes:
        raise UsageError(f"weights of the dtype {dtype!r} are not known. Known: {', '.join(sorted(sizes))}.")
    return sizes[dtype]


def has_values(dtype: str) -> bool:
    """Whether `values_of` can read it."""
    return dtype == "bfloat16" or dtype in _NUMPY


def values_of(raw: Bytes, dtype: str) -> npt.NDArray[Any]:
    """The numbers that the bytes stand for. Shape: [N x item_size] -> [N]; bfloat16 as float32, exactly."""
    if dtype == "bfloat16":
        return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)
    return raw.view(_NUMPY[dtype])


def rounded_dtype(dtype: str, wanted: str | None) -> str:
    """The dtype after rounding: `wanted` for floating weights, their own for all others and without `wanted`.

    Raises: UsageError if the weights are floating and cannot be rounded, as eight-bit ones with scales of their own.
    """
    if wanted is None or dtype == wanted or not dtype.startswith(("float", "bfloat")):
        return dtype
    if dtype not in _FLOATING:
        raise UsageError(
            f"weights in {dtype} have no value without their scales, so they cannot be rounded to {wanted}. Compare "
            "them as they are, without --as."
        )
    return wanted


def rounded(raw: Bytes, dtype: str, wanted: str) -> Bytes:
    """The bytes of the same weights in another floating dtype: to nearest, ties to even, by way of float32.

    That is what torch's `to` does, from float64 too. Beyond the range of float16 they become infinite.
    """
    if dtype == wanted:
        return raw
    with np.errstate(over="ignore"):
        values: FloatArray = values_of(raw, dtype).astype(np.float32)
        if wanted == "float32":
            return values.view(np.uint8)
        if wanted == "float16":
            return values.astype("<f2").view(np.uint8)
    return _to_bfloat16(values.view(np.uint32)).view(np.uint8)


def _to_bfloat16(bits: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint16]:
    """The upper half, rounded to nearest, ties to even; a NaN becomes torch's, 0x7FC0."""
    is_nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    upper = (bits.astype(np.uint64) + np.uint64(0x7FFF) + odd) >> np.uint64(16)
    return np.where(is_nan, np.uint16(0x7FC0), upper.astype(np.uint16))
