"""The weights that a path names: a folder as save_pretrained writes it, or one file."""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterator
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
    "*.safetensors",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "adapter_model.bin",
)
"""what is looked for in a folder, the first that is there counts"""


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
    _refuse_lost(path, found)
    return found


def _refuse_lost(path: Path, found: Container[str]) -> None:
    """Raise DumpError if an index names a tensor that no file has."""
    index = _index_of(path)
    lost = [] if index is None else [name for name in _weight_map(index) if plain_name(name) not in found]
    if lost:
        raise DumpError(
            f"{index}: names {len(lost)} tensors that its files do not hold, the first is {lost[0]}. Copy the model "
            "again."
        )


def _index_of(path: Path) -> Path | None:
    """The index by which a folder or an index file is read; None if there is none."""
    if path.is_file():
        return path if path.name.endswith(".index.json") else None
    first = next((name for name in _NAMES if any(path.glob(name))), "")
    return path / first if first.endswith(".index.json") else None


def files_of(path: Path) -> list[Path]:
    """The files that hold the weights. Raises: UsageError, DumpError."""
    if path.is_file():
        return _shards(path) if path.name.endswith(".index.json") else [path]
    if not path.is_dir():
        raise UsageError(f"there is no file or folder {path}. Give a model's folder, a .safetensors or a .bin file.")
    for name in _NAMES:
        if files := sorted(path.glob(name)):
            return _shards(files[0]) if name.endswith(".index.json") else files
    held = ", ".join(sorted(entry.name for entry in path.iterdir())[:10]) or "nothing"
    raise UsageError(f"{path} has no weights; it holds {held}. Give the folder that save_pretrained wrote.")


def _shards(index: Path) -> list[Path]:
    """The files that an index names, which must lie beside it."""
    names = sorted(set(map(str, _weight_map(index).values())))
    for name in names:
        if Path(name).name != name:
            raise DumpError(f"{index}: names the file {name!r}, which is not in its own folder.")
        if not (index.parent / name).is_file():
            raise DumpError(f"{index}: names {name}, which is not there. Copy the whole folder.")
    return [index.parent / name for name in names]


def _weight_map(index: Path) -> dict[str, object]:
    try:
        return dict(json.loads(index.read_text())["weight_map"])
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, ValueError) as error:
        raise DumpError(f"{index}: has no weight_map of names and files ({error!r}). Save the model again.") from error


def _reader(file: Path) -> Callable[[Path], Iterator[StreamedTensor]]:
    if file.suffix == ".safetensors":
        return safetensors_of
    if file.suffix in _TORCH:
        return torch_tensors_of
    raise UsageError(f"{file}: weights are read from .safetensors, {', '.join(_TORCH)}; convert it first.")
