"""A tensor of weights as a stream of its bytes, wherever they lie."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from onepolicy.weights.dtypes import Bytes, item_size

PIECE = 1 << 22
"""values in a piece: 16 MiB of float32, so that some tensors can be read at once in little memory"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StreamedTensor:
    """Its values in C order, little-endian, in pieces of `PIECE` values; may be read several times."""

    name: str
    dtype: str
    """as torch names it"""
    shape: tuple[int, ...]
    pieces: Callable[[], Iterator[Bytes]]

    @property
    def count(self) -> int:
        """How many values."""
        return math.prod(self.shape)

    @property
    def size(self) -> int:
        """Bytes."""
        return self.count * item_size(self.dtype)


def pieces_of(raw: Bytes, dtype: str) -> Iterator[Bytes]:
    """Bytes that lie in memory, in pieces."""
    step = PIECE * item_size(dtype)
    return (raw[start : start + step] for start in range(0, len(raw), step))


def raw_bytes(array: np.ndarray) -> Bytes:  # of any dtype
    """The bytes of an array in C order, little-endian, without a copy where they lie so."""
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return np.ascontiguousarray(little).reshape(-1).view(np.uint8)


_WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")


def plain_name(name: str) -> str:
    """The name without what torch.compile, FSDP, activation checkpointing and DDP put into it."""
    parts = [part for part in name.split(".") if part not in _WRAPPERS]
    return ".".join(parts[1:] if parts[0] == "module" and len(parts) > 1 else parts)
