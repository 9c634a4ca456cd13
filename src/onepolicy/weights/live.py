"""The digest of a module in memory, sharded or not. Torch is not imported: a module cannot exist before it was."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from onepolicy.errors import UsageError
from onepolicy.weights.digest import Rounded, TensorDigest, WeightsDigest, digest_tensor, gathered
from onepolicy.weights.dtypes import Bytes
from onepolicy.weights.tensor import PIECE, StreamedTensor, plain_name


def digest_of(module: Any, *, rounded_to: Rounded | None = None) -> WeightsDigest:
    """The digest of a `torch.nn.Module`: that of the file which its state dict would be saved to.

    Sharded parameters (FSDP2, tensor parallel: DTensor) are gathered one at a time, so every rank must call this, and
    every rank gets the whole digest. Memory: the largest tensor, once more. Buffers that no file holds, such as rotary
    frequencies, are in `tables`.
    rounded_to: float32 master weights against an engine in bfloat16 are compared after rounding them to bfloat16.
    Raises: UsageError for a module without weights, or with weights that have no values (device meta).
    """
    state = _named(module.state_dict(), module)
    kept = {plain_name(name) for name in module.state_dict()}
    tables = {name: one for name, one in _named(dict(module.named_buffers()), module).items() if name not in kept}
    return gathered(
        _digests(state, rounded_to), type(module).__name__, rounded_to, tables=_digests(tables, rounded_to=None)
    )


def _named(tensors: Mapping[str, Any], module: Any) -> dict[str, Any]:
    """The tensors by their plain names, in the order that all ranks have in common."""
    found = {plain_name(name): tensor for name, tensor in tensors.items() if hasattr(tensor, "detach")}
    plain = [name for name in tensors if hasattr(tensors[name], "detach")]
    if len(found) != len(plain):
        raise UsageError(f"{type(module).__name__}: two of its weights have one name once wrappers are taken off it.")
    return dict(sorted(found.items()))


def _digests(tensors: Mapping[str, Any], rounded_to: Rounded | None) -> dict[str, TensorDigest]:
    return {name: digest_tensor(_streamed(name, tensor), rounded_to=rounded_to) for name, tensor in tensors.items()}


def _streamed(name: str, tensor: Any) -> StreamedTensor:
    if tensor.is_meta:
        raise UsageError(f"{name}: is on the device meta and has no values yet. Load the weights first.")
    whole = tensor.detach()
    if hasattr(whole, "full_tensor"):  # a DTensor: a collective, in which every rank takes part
        whole = whole.full_tensor()
    dtype = str(whole.dtype).removeprefix("torch.")
    return StreamedTensor(name=name, dtype=dtype, shape=tuple(whole.shape), pieces=partial(_pieces, whole))


def _pieces(whole: Any) -> Iterator[Bytes]:
    """Copied from the device a piece at a time."""
    torch = sys.modules["torch"]
    flat = whole.contiguous().reshape(-1)
    for start in range(0, flat.numel(), PIECE):
        piece = flat[start : start + PIECE].view(torch.uint8).cpu()
        yield np.asarray(piece.numpy())
