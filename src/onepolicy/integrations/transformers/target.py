"""What a spec's target names: the folder to load."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
)

from onepolicy.engines.models import PACKAGED_MODELS, is_packaged, packaged_gguf
from onepolicy.errors import EngineError
from onepolicy.integrations.transformers.convert import converted

WEIGHT_FILES = ("model.safetensors", "model.safetensors.index.json")
"""one of them must be there; pickled weights are not read, as unpickling runs code"""

HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")

DOWNLOADED = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]


def model_folder(target: str) -> Path:
    """The folder with the model that `target` names: a folder, a `.gguf` file, a packaged model or a hub id.

    A GGUF file is converted into the cache first. The weights of a packaged one are rounded to bfloat16, so that every
    engine in every precision reads the same small folder; those of a file are kept as the float32 numbers that
    de-quantising gives.

    Raises: EngineError if there is no such model, or its folder is not complete.
    """
    if is_packaged(target):
        return converted(packaged_gguf(target), name=target, dtype=torch.bfloat16)
    path = Path(target).expanduser()
    if path.suffix == ".gguf":
        return converted(_existing_file(path), name=path.stem, dtype=torch.float32)
    if path.is_dir():
        return _complete(path)
    if HUB_ID.fullmatch(target) and not target.startswith(".") and not path.parent.is_dir():
        return _complete(_downloaded(target))
    raise EngineError(
        f"{target!r} is no folder, no .gguf file and no packaged model. "
        f"Give a folder that save_pretrained wrote, or one of: {', '.join(PACKAGED_MODELS)}."
    )


def _existing_file(path: Path) -> Path:
    if not path.is_file():
        raise EngineError(f"there is no file {path}. Check the path, or give one of: {', '.join(PACKAGED_MODELS)}.")
    return path


def _complete(folder: Path) -> Path:
    found = ", ".join(sorted(entry.name for entry in folder.iterdir())[:10]) or "nothing"
    if not (folder / "config.json").is_file():
        raise EngineError(f"{folder} has no config.json; it holds {found}. Give the folder that save_pretrained wrote.")
    if not any((folder / name).is_file() for name in WEIGHT_FILES):
        raise EngineError(
            f"{folder} has no weights: looked for {' and '.join(WEIGHT_FILES)}; it holds {found}. "
            "Save the model there with save_pretrained, which writes safetensors."
        )
    return folder


def _downloaded(hub_id: str) -> Path:
    try:
        return Path(snapshot_download(hub_id, allow_patterns=DOWNLOADED))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled) as error:
        reason = str(error).strip().partition("\n")[0]
        raise EngineError(
            f"{hub_id!r} is no folder here, and the Hugging Face hub did not give it ({reason}). "
            "Check the path, or download the model first."
        ) from error
