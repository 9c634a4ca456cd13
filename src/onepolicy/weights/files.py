"""The weights that a path names: a folder as save_pretrained writes it, or one file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from onepolicy.errors import DumpError, UsageError
from onepolicy.weights.safetensors import safetensors_of
from onepolicy.weights.tensor import StreamedTensor, plain_name
from onepolicy.weights.torch_file import torch_tensors_of

_TORCH = (".bin", ".pt", ".pth")
_NAMES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "adapter_model.safetensors",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "adapter_model.bin",
)
"""what is looked for in a folder, the first one found counts"""


def weights_in(path: Path) -> dict[str, StreamedTensor]:
    """The tensors of a folder or file, by their names.

    Raises: UsageError if nothing is there that can be read; DumpError if a file is damaged, a shard is absent, or a
    tensor is there twice.
    """
    found: dict[str, StreamedTensor] = {}
    for file in files_of(path):
        for tensor in _reader(file)(file):
            name = plain_name(tensor.name)
            if name in found:
                raise DumpError(f"{path}: the tensor {name} is there twice, the second time in {file.name}.")
            found[name] = replace(tensor, name=name)
    return found


def files_of(path: Path) -> list[Path]:
    """The files that hold the weights. Raises: UsageError, DumpError."""
    if path.is_file():
        return _shards(path) if path.name.endswith(".index.json") else [path]
    if not path.is_dir():
        raise UsageError(f"there is no file or folder {path}. Give a model's folder, a .safetensors or a .bin file.")
    for name in _NAMES:
        if (path / name).is_file():
            return _shards(path / name) if name.endswith(".index.json") else [path / name]
    if several := sorted(path.glob("*.safetensors")):
        return several
    held = ", ".join(sorted(entry.name for entry in path.iterdir())[:10]) or "nothing"
    raise UsageError(f"{path} has no weights; it holds {held}. Give the folder that save_pretrained wrote.")


def _shards(index: Path) -> list[Path]:
    """The files that an index names, which must lie beside it."""
    try:
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, AttributeError) as error:
        raise DumpError(f"{index}: has no weight_map of names and files ({error!r}). Save the model again.") from error
    for name in names:
        if not isinstance(name, str) or Path(name).name != name:
            raise DumpError(f"{index}: names the file {name!r}, which is not in its own folder.")
        if not (index.parent / name).is_file():
            raise DumpError(f"{index}: names {name}, which is not there. Copy the whole folder.")
    return [index.parent / name for name in names]


def _reader(file: Path) -> Callable[[Path], Iterator[StreamedTensor]]:
    if file.suffix == ".safetensors":
        return safetensors_of
    if file.suffix in _TORCH:
        return torch_tensors_of
    raise UsageError(f"{file}: weights are read from .safetensors, {', '.join(_TORCH)}; convert it first.")
