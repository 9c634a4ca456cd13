"""Tensors of a file that torch.save wrote, read without torch and without running what it says."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from onepolicy.dumps.stored import Opaque, StoredTensor
from onepolicy.dumps.torch_archive import unpickled
from onepolicy.errors import DumpError
from onepolicy.weights.tensor import StreamedTensor, pieces_of, raw_bytes

_INSIDE = ("state_dict", "model", "module", "model_state_dict")
"""keys under which trainers keep the weights beside other things"""


def torch_tensors_of(path: Path) -> Iterator[StreamedTensor]:
    """The tensors of a state dict. Values are read from the mapped file; bfloat16 is held in memory as float32.

    Raises: DumpError if the file is damaged, asks for more than data, or holds no state dict.
    """
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    try:
        held = unpickled(memoryview(mapped))
    except DumpError as error:
        raise DumpError(f"{path}: {error}") from error
    for name, tensor in _state(path, held).items():
        yield _streamed(str(name), tensor)


def _state(path: Path, held: object) -> dict[Any, StoredTensor]:
    """The dict of tensors, or the one that lies under a usual key."""
    entries = held.items if isinstance(held, Opaque) else held
    if isinstance(entries, dict):
        inside = next((entries[key] for key in _INSIDE if isinstance(entries.get(key), dict | Opaque)), None)
        if inside is not None:
            return _state(path, inside)
        tensors = {name: value for name, value in entries.items() if isinstance(value, StoredTensor)}
        if tensors:
            return tensors
    raise DumpError(
        f"{path}: holds no state dict, but {type(held).__name__}. Save the weights: "
        "torch.save(model.state_dict(), ...), or better save_pretrained, which writes safetensors."
    )


def _streamed(name: str, tensor: StoredTensor) -> StreamedTensor:
    return StreamedTensor(name=name, dtype=tensor.dtype, shape=tensor.shape, pieces=partial(_pieces, tensor))


def _pieces(tensor: StoredTensor) -> Iterator[Any]:
    array = tensor.array
    if tensor.dtype == "bfloat16":  # kept as float32, whose upper half it is
        array = (np.ascontiguousarray(array).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    return pieces_of(raw_bytes(array), tensor.dtype)
