"""Tensors of torch as views of the bytes of a file. Every size that a file claims is checked before it is used."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from onepolicy.dumps.arrays import MAX_DIMENSIONS, Array, as_bool, counts, shaped, short
from onepolicy.dumps.stored import Global, StoredTensor
from onepolicy.errors import DumpError

FREE_VALUES = 1 << 24
"""values that a view may show whatever its storage holds, about 128 MiB when copied"""
VIEWS_PER_VALUE = 64
"""how often a view may show each stored value beyond that; a broadcast over a group of rollouts is about 16"""
TORCH_DTYPES = {
    "float64": "f8",
    "float32": "f4",
    "float16": "f2",
    "bfloat16": "u2",
    "int64": "i8",
    "int32": "i4",
    "int16": "i2",
    "int8": "i1",
    "uint8": "u1",
    "uint16": "u2",
    "uint32": "u4",
    "uint64": "u8",
    "bool": "u1",
    "complex64": "c8",
    "complex128": "c16",
}
"""dtype of torch -> code of numpy in which its bytes are read"""
STORAGES = {
    "torch.DoubleStorage": "float64",
    "torch.FloatStorage": "float32",
    "torch.HalfStorage": "float16",
    "torch.BFloat16Storage": "bfloat16",
    "torch.LongStorage": "int64",
    "torch.IntStorage": "int32",
    "torch.ShortStorage": "int16",
    "torch.CharStorage": "int8",
    "torch.ByteStorage": "uint8",
    "torch.BoolStorage": "bool",
    "torch.ComplexFloatStorage": "complex64",
    "torch.ComplexDoubleStorage": "complex128",
    "torch.UntypedStorage": "uint8",
    "torch.storage.UntypedStorage": "uint8",
}


@dataclass(eq=False)
class Storage:
    """The memory behind one or many tensors."""

    dtype: str
    data: memoryview | None
    """bytes; None while a file is only looked through"""
    big_endian: bool = False

    _made: dict[str, Array] = field(default_factory=dict)

    def of(self, dtype: str) -> Array:
        """[N] its values, read-only, made once for all views of it; bfloat16 as float32."""
        if dtype not in self._made:
            self._made[dtype] = self._as(dtype)
        return self._made[dtype]

    def _as(self, dtype: str) -> Array:
        assert self.data is not None
        code = np.dtype(TORCH_DTYPES[dtype])
        if len(self.data) % code.itemsize:
            raise DumpError(f"a storage of {len(self.data)} bytes holds no whole number of {dtype} values")
        raw = np.frombuffer(self.data, dtype=code.newbyteorder(">" if self.big_endian else "<"))
        values = raw.astype(code, copy=False)
        if dtype == "bfloat16":
            values = (values.astype(np.uint32) << 16).view(np.float32)
        if dtype == "bool":
            values = as_bool(values)
        values.flags.writeable = False
        return values


def tensor_of(
    storage: Storage, *, offset: object, size: object, stride: object, dtype: str = ""
) -> StoredTensor | None:
    """The view of a storage that a tensor is; None while the storage has no bytes yet.

    Raises: DumpError if the view would leave its storage.
    """
    if storage.data is None:
        return None
    dtype = dtype or storage.dtype
    values = storage.of(dtype)
    shape, strides = counts(size, "size"), counts(stride, "stride")
    (start,) = counts((offset,), "offset")
    if len(shape) != len(strides) or len(shape) > MAX_DIMENSIONS:
        raise DumpError(f"a tensor of {len(shape)} sizes and {len(strides)} strides")
    _check_inside(len(values), start, shape, strides)
    return StoredTensor(array=_view(values, start, shape, strides), dtype=dtype)


def _check_inside(stored: int, start: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
    shown = math.prod(shape)
    last = start + sum((n - 1) * step for n, step in zip(shape, strides, strict=True)) if shown else start - 1
    if last >= stored or start > stored:
        raise DumpError(
            f"a tensor of shape {short(shape)} with strides {short(strides)} at {start} reads up to value {last} of "
            f"a storage that holds {stored}"
        )
    if shown > FREE_VALUES and shown > VIEWS_PER_VALUE * stored:
        raise DumpError(f"a tensor of shape {short(shape)} shows {shown} values of a storage that holds {stored}")


def _view(values: Array, start: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
    count = math.prod(shape)
    if not count:
        return shaped(values[:0], shape)
    dense, step = [], 1
    for n in reversed(shape):
        dense.append(step)
        step *= n
    if all(n == 1 or a == b for n, a, b in zip(shape, strides, reversed(dense), strict=True)):
        return shaped(values[start : start + count], shape)
    steps = [0 if n == 1 else step * values.itemsize for n, step in zip(shape, strides, strict=True)]
    return np.lib.stride_tricks.as_strided(values[start:], shape=shape, strides=steps, writeable=False)


def storage_dtype(found: object) -> str:
    """The dtype of a storage class: torch.FloatStorage -> float32."""
    if not isinstance(found, Global) or found.name not in STORAGES:
        raise DumpError(f"a storage of the unknown class {found.name if isinstance(found, Global) else '?'}")
    return STORAGES[found.name]


def dense_strides(shape: object) -> tuple[int, ...]:
    """The strides of a tensor without gaps."""
    strides, step = [], 1
    for n in reversed(counts(shape, "size")):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))
