"""numpy arrays from the bytes of a file. A size that a file claims is checked before it is used."""

from __future__ import annotations

import math
import re
import sys
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from onepolicy.dumps.stored import Opaque
from onepolicy.errors import DumpError

Array = npt.NDArray[Any]

MAX_DIMENSIONS = 32
"""of numpy 1; numpy 2 has 64, and recordings have three"""


@dataclass(eq=False)
class PendingArray:
    """An array that a pickle has begun and not yet filled."""

    keys: list[int] = field(default_factory=list)
    """under which the pickle refers back to it"""


def shaped(values: Array, shape: tuple[int, ...], order: Any = "C") -> Array:
    """The flat values in a shape. Raises: DumpError if they do not fill it."""
    try:
        return values.reshape(shape, order=order)
    except (ValueError, OverflowError) as error:
        raise DumpError(f"an array of shape {short(shape)} from {values.size} values") from error


def dtype_of(found: object) -> np.dtype[Any]:
    """The dtype that a pickle describes: numpy.dtype with its code and state.

    Raises: DumpError for dates, records and subarrays, which no recording holds.
    """
    if not isinstance(found, Opaque) or found.name != "numpy.dtype" or not found.args:
        raise DumpError(f"a dtype is {type(found).__name__}")
    code, order = found.args[0], _byte_order(found.state)
    if not isinstance(code, str) or not _is_code(code):
        raise DumpError(f"an array of dtype {str(code)[:40]!r}, which is none of numbers, strings and objects")
    if code[0] == "O":
        return np.dtype(object)
    if code[0] in "SU" and order is not None:
        return np.dtype(f"{order}{code}")
    return np.dtype(code) if order is None or code[0] in "SU" else np.dtype(code).newbyteorder(order)


def _is_code(code: str) -> bool:
    kind, width = code[:1], code[1:]
    if not (width.isascii() and width.isdigit() and len(width) < 10):
        return code == "O"
    widths = {"b": {1}, "i": {1, 2, 4, 8}, "u": {1, 2, 4, 8}, "f": {2, 4, 8}, "c": {8, 16}, "O": {4, 8}}
    return int(width) in widths[kind] if kind in widths else kind in {"S", "U"} and int(width) > 0


def _byte_order(state: object) -> Any:
    """`<`, `>` or None, from the state of a dtype, which also says that it is no record and no subarray."""
    if state is None:
        return None
    if not isinstance(state, tuple) or not 8 <= len(state) <= 9 or any(part is not None for part in state[2:5]):
        raise DumpError("an array of records, which no recording holds")
    order = state[1]
    if type(order) is not str or order not in {"<", ">", "|", "="}:
        raise DumpError("a dtype of an unknown byte order")
    return None if order in {"|", "="} else order


def array_of(state: object) -> Array:
    """A numpy array from the state of its pickle: (version, shape, dtype, Fortran order, bytes or list of objects)."""
    if not isinstance(state, tuple) or len(state) != 5:
        raise DumpError("an array whose contents are not (version, shape, dtype, order, data)")
    _, size, described, fortran, data = state
    shape, dtype = counts(size, "size"), dtype_of(described)
    if len(shape) > MAX_DIMENSIONS:
        raise DumpError(f"an array of {len(shape)} dimensions")
    if dtype.hasobject:
        return _objects(data, shape)
    return shaped(_plain(data, dtype, shape), shape, order="F" if fortran is True else "C")


def _objects(data: object, shape: tuple[int, ...]) -> Array:
    """numpy writes objects in C order, whatever the order of the array."""
    if not isinstance(data, list) or len(data) != math.prod(shape):
        raise DumpError(f"an array of objects of shape {short(shape)} with other contents")
    flat = np.empty(len(data), dtype=object)
    for at, entry in enumerate(data):
        flat[at] = entry
    return shaped(flat, shape)


def _plain(data: object, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    if not isinstance(data, bytes | bytearray):
        raise DumpError(f"an array of {dtype} whose contents are {type(data).__name__}")
    needed = math.prod(shape) * dtype.itemsize
    if len(data) != needed:
        raise DumpError(f"an array of {dtype} of shape {short(shape)} needs {needed} bytes, the file has {len(data)}")
    values = np.frombuffer(bytes(data), dtype=dtype) if needed else np.empty(0, dtype=dtype)
    if dtype.kind == "b":
        as_bool(values.view(np.uint8))
    values = values.astype(dtype.newbyteorder("="), copy=False)
    if dtype.kind == "U" and values.size and values.view(np.uint32).max() > sys.maxunicode:
        raise DumpError("an array of strings with characters that do not exist; the file is damaged")
    return values


def array_from_buffer(data: object, described: object, size: object, order: object, axes: object = None) -> Array:
    """A numpy array as protocol 5 keeps it: (buffer, dtype, shape, order, order of axes)."""
    shape, dtype = counts(size, "size"), dtype_of(described)
    if dtype.hasobject or len(shape) > MAX_DIMENSIONS or type(order) is not str or order not in {"C", "F", "K"}:
        raise DumpError(f"an array of {dtype} of shape {short(shape)} in an unknown order")
    found = shaped(_plain(data, dtype, shape), shape, order="F" if order == "F" else "C")
    if axes is None:
        return found
    order_of_axes = counts(axes, "axes")
    if sorted(order_of_axes) != list(range(len(shape))):
        raise DumpError(f"an array of {len(shape)} dimensions whose axes are {short(order_of_axes)}")
    return found.transpose(order_of_axes)


def scalar_of(described: object, data: object) -> Any:
    """A number or string that was a numpy scalar."""
    dtype = dtype_of(described)
    if dtype.hasobject:
        raise DumpError("a numpy scalar of objects")
    return _plain(data, dtype, (1,))[0].item()


def as_bool(values: npt.NDArray[Any]) -> Array:
    """Bytes as bools. Raises: DumpError if one is neither 0 nor 1."""
    if values.size and values.max() > 1:
        raise DumpError(f"a bool whose byte is {values.max()}; the file is damaged")
    return values.view(np.bool_)


def counts(found: object, what: str) -> tuple[int, ...]:
    """A tuple of whole numbers from 0 to 2**48, which no memory exceeds."""
    if not isinstance(found, tuple | list) or not all(type(n) is int and 0 <= n < 1 << 48 for n in found):
        raise DumpError(f"the {what} of a tensor or array is {short(found)}")
    return tuple(found)


def short(found: object) -> str:
    """Sizes for a message, whatever the file has in their place."""
    if isinstance(found, tuple | list) and all(type(n) is int and abs(n) < 1 << 80 for n in found):
        return str(tuple(found))[:120]
    return f"a {type(found).__name__} of something else than whole numbers"


def numpy_file(data: Any) -> Array:
    """The array of a .npy file: numbers or strings. Raises: DumpError if it is cut short, or holds something else.

    Source: NEP 1. Its head is a Python literal, which numpy parses; here only the one form is taken that numpy writes.
    """
    wide = data[6] >= 2 if len(data) > 6 else False
    start = 12 if wide else 10
    length = int.from_bytes(data[8:start], "little")
    head = _NUMPY_HEAD.fullmatch(bytes(data[start : start + min(length, _MAX_HEAD)]))
    if head is None or not _is_code(head[2].decode()):
        raise DumpError("the numpy file is damaged, or holds something else than numbers and strings")
    order, code, fortran, sizes = (part.decode() for part in head.groups())
    shape = tuple(int(size) for size in sizes.replace(",", " ").split())
    dtype = np.dtype(order + code)
    if dtype.hasobject or len(shape) > MAX_DIMENSIONS:
        raise DumpError(f"a numpy file of {dtype} with {len(shape)} dimensions")
    body = bytes(data[start + length :])
    return shaped(_plain(body, dtype, counts(shape, "size")), shape, order="F" if fortran == "True" else "C")


_NUMPY_HEAD = re.compile(
    rb"\{'descr': '([<>|=])([a-zA-Z][0-9]{1,9})', 'fortran_order': (True|False), 'shape': \(([0-9, ]{0,600})\), \}\s*"
)
_MAX_HEAD = 1 << 14
"""bytes before the values; numpy writes 128"""
