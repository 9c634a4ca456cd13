"""Tensors of a safetensors file, by memory map.

The file: 8 bytes with the length of the header, the header in JSON (name -> dtype, shape, data_offsets), the values.
Source: the format's README, https://github.com/huggingface/safetensors. Every size that a file claims is checked.
"""

from __future__ import annotations

import json
import math
import mmap
import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from onepolicy.errors import DumpError
from onepolicy.weights.dtypes import SAFETENSORS, Bytes, item_size
from onepolicy.weights.tensor import PIECE, StreamedTensor

_LONGEST_HEADER = 100_000_000
"""bytes; the format's own limit"""


def safetensors_of(path: Path) -> Iterator[StreamedTensor]:
    """The tensors of a file, which stays mapped as long as one of them is held.

    Memory: pages are given back as they are read, so no more than a piece for each reader. Raises: DumpError if the
    file is damaged.
    """
    size = path.stat().st_size
    if size < 8:
        raise _damaged(path, f"it has {size} bytes")
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    (length,) = struct.unpack("<Q", mapped[:8])
    if length > min(size - 8, _LONGEST_HEADER):
        raise _damaged(path, f"its header would have {length} bytes and the file has {size}")
    for name, entry in _header(path, mapped[8 : 8 + length]).items():
        if name != "__metadata__":
            yield _tensor(path, mapped, name, entry, start=8 + length)


def _header(path: Path, content: bytes) -> dict[str, Any]:
    try:
        header = json.loads(content)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise _damaged(path, f"its header is not JSON ({error})") from error
    if not isinstance(header, dict):
        raise _damaged(path, "its header is no JSON object")
    return header


def _tensor(path: Path, mapped: mmap.mmap, name: str, entry: object, *, start: int) -> StreamedTensor:
    dtype, shape, begin, end = _entry(path, name, entry)
    wanted = math.prod(shape) * item_size(dtype)
    if not (0 <= begin <= end <= len(mapped) - start) or end - begin != wanted:
        raise _damaged(
            path, f"{name}: {dtype} {list(shape)} has {wanted} bytes, and is said to lie at {begin} to {end}"
        )
    pieces = partial(_pieces, mapped, start + begin, start + end, PIECE * item_size(dtype))
    return StreamedTensor(name=name, dtype=dtype, shape=shape, pieces=pieces)


def _entry(path: Path, name: str, entry: object) -> tuple[str, tuple[int, ...], int, int]:
    """dtype, shape, begin and end. Raises: DumpError."""
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
        raise _damaged(path, f"{name}: has no dtype, shape and data_offsets")
    numbers = [*_list(entry["shape"]), *_list(entry["data_offsets"])]
    if len(_list(entry["data_offsets"])) != 2 or not all(type(n) is int and n >= 0 for n in numbers):
        raise _damaged(path, f"{name}: shape {entry['shape']!r}, data_offsets {entry['data_offsets']!r}")
    if entry["dtype"] not in SAFETENSORS:
        raise DumpError(f"{path}: {name} is of the dtype {entry['dtype']!r}. Known: {', '.join(SAFETENSORS)}.")
    begin, end = entry["data_offsets"]
    return SAFETENSORS[entry["dtype"]], tuple(entry["shape"]), begin, end


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else [None]


def _pieces(mapped: mmap.mmap, begin: int, end: int, step: int) -> Iterator[Bytes]:
    whole = np.frombuffer(mapped, dtype=np.uint8)
    for at in range(begin, end, step):
        yield whole[at : min(at + step, end)]
        _give_back(mapped, at, min(at + step, end))


def _give_back(mapped: mmap.mmap, begin: int, end: int) -> None:
    """Let the system have the pages that lie wholly inside; the values stay in the file."""
    first, last = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
    if last > first and hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED, first, last - first)


def _damaged(path: Path, found: str) -> DumpError:
    return DumpError(f"{path}: is no whole safetensors file: {found}. Copy or save it again.")
