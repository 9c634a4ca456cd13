"""A tensordict whose tensors lie one after the other in one tensor of bytes, as its `consolidate` writes it.

Source: tensordict/_reductions.py. verl consolidates before it writes a DataProto.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from onepolicy.dumps.stored import Opaque, StoredTensor
from onepolicy.dumps.tensors import TORCH_DTYPES, Storage, dense_strides, tensor_of
from onepolicy.errors import DumpError

MAX_LEVELS = 16
"""tensordicts in tensordicts"""
_PARTS = frozenset({"cls", "non_tensors", "leaves", "cls_metadata"})


def consolidated(metadata: object, storage: object) -> Opaque | None:
    """The tensordict with its entries under `_tensordict`, as in other files; None while there are no bytes yet.

    Raises: DumpError if its table leads outside of the bytes.
    """
    if storage is None:
        return None
    if not isinstance(storage, StoredTensor) or storage.dtype != "uint8":
        raise DumpError("a consolidated TensorDict without its tensor of bytes")
    return _part(metadata, np.ascontiguousarray(storage.array).reshape(-1).data, 0)


def _part(metadata: object, data: memoryview, depth: int) -> Opaque:
    if type(metadata) is not dict or depth > MAX_LEVELS or not metadata.keys() >= _PARTS:
        raise DumpError("a consolidated TensorDict without its table of tensors")
    leaves, others = metadata["leaves"], metadata["non_tensors"]
    if type(leaves) is not dict or type(others) is not dict:
        raise DumpError("a consolidated TensorDict whose table is no dict")
    entries: dict[Any, Any] = {key: _first(entry) for key, entry in others.items()}
    entries |= {key: _leaf(key, leaf, data) for key, leaf in leaves.items()}
    for key in metadata.keys() - _PARTS - {"size"}:
        entries[key] = _part(metadata[key], data, depth + 1)
    return Opaque(name="tensordict._td.TensorDict", state={"_tensordict": entries, **_own(metadata["cls_metadata"])})


def _own(found: object) -> dict[str, object]:
    return {"_batch_size": found.get("batch_size")} if type(found) is dict else {}


def _first(entry: object) -> object:
    return entry[0] if type(entry) is tuple and entry else entry


def _leaf(key: object, leaf: Any, data: memoryview) -> object:
    """(dtype, shape, first byte, byte behind the last, padding)"""
    where = f"the entry {str(key)[:80]!r} of a consolidated TensorDict"
    if type(leaf) not in {tuple, list} or len(leaf) != 5 or type(leaf[0]) is not str:
        raise DumpError(f"{where} is not (dtype, shape, start, stop, padding)")
    dtype, shape, start, stop = leaf[0].removeprefix("torch."), leaf[1], leaf[2], leaf[3]
    if dtype not in TORCH_DTYPES or type(start) is not int or type(stop) is not int:
        raise DumpError(f"{where} is not (dtype, shape, start, stop, padding)")
    if not 0 <= start <= stop <= len(data):
        raise DumpError(f"{where} lies at {start} to {stop} of {len(data)} bytes")
    return tensor_of(Storage(dtype, data[start:stop]), offset=0, size=shape, stride=dense_strides(shape))
