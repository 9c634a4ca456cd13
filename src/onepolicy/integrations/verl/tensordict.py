"""The tensors of a `DataProto` from the two forms in which verl saves them.

A TensorDict, consolidated or not, inside of a torch file; or, under VERL_DATAPROTO_SERIALIZATION_METHOD=numpy, the
batch size, the device and dtype, shape and bytes of each tensor. Nested (jagged) tensors are passed over: no column
that is read is one.

Source: verl-project/verl:verl/protocol.py (__getstate__, serialize_tensordict).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from onepolicy.dumps.stored import Opaque, StoredTensor
from onepolicy.dumps.tensors import TORCH_DTYPES, Storage, dense_strides, tensor_of
from onepolicy.errors import DumpError


def tensors_of(batch: Any, *, where: str) -> dict[str, StoredTensor]:
    """The tensors by name; where: the file. Raises: DumpError if the batch has none, or is of neither form."""
    found = None
    if isinstance(batch, Opaque):
        entries: dict[str, Any] = next((part["_tensordict"] for part in batch.parts() if _is_tensordict(part)), {})
        found = {name: value for name, value in entries.items() if isinstance(value, StoredTensor)}
    elif isinstance(batch, tuple) and len(batch) == 3 and isinstance(batch[2], dict):
        found = {name: _tensor(name, leaf, where=where) for name, leaf in batch[2].items() if _is_dense(leaf)}
    if not found:
        raise DumpError(f"{where}: its batch has no tensors: no token ids and no logprobs. Save a batch that has them.")
    return found


def _is_tensordict(part: Any) -> bool:
    return isinstance(part, dict) and isinstance(part.get("_tensordict"), dict)


def _is_dense(leaf: Any) -> bool:
    return isinstance(leaf, tuple) and len(leaf) == 3


def _tensor(name: str, leaf: tuple[Any, Any, Any], *, where: str) -> StoredTensor:
    dtype, shape, data = leaf
    if (
        not isinstance(dtype, str)
        or dtype not in TORCH_DTYPES
        or not isinstance(data, np.ndarray)
        or data.dtype != np.uint8
    ):
        raise DumpError(f"{where}: {name} is no tensor as verl saves one. The file is damaged; save it again.")
    try:
        found = tensor_of(Storage(dtype, memoryview(data.tobytes())), offset=0, size=shape, stride=dense_strides(shape))
    except DumpError as error:
        raise DumpError(f"{where}: {name}: {error}") from error
    assert found is not None
    return found
