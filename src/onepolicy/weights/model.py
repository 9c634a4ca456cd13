"""The hash by which a reading names the weights of its engine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from onepolicy.errors import DumpError
from onepolicy.weights.digest import digest_tensors
from onepolicy.weights.files import weights_in

_CONFIGS = ("config.json", "adapter_config.json")
"""they say how weights are used: rotary base, LoRA's alpha"""
_NOT_OF_THE_MODEL = frozenset({"transformers_version", "_name_or_path", "peft_version", "torch_dtype", "dtype"})
"""what saving a model again changes; the dtype is part of each tensor's digest"""


def model_hash(folders: Iterable[Path]) -> str:
    """16 hex digits for the weights in these folders (a model's, its adapter's) and how their configuration uses them.

    Saving the model again in other shards, or with a newer library, does not change it. Raises: UsageError, DumpError.
    """
    together = hashlib.sha256()
    for folder in folders:
        weights = digest_tensors(weights_in(folder).values(), source=str(folder))
        together.update(bytes.fromhex(weights.whole))
        for name in _CONFIGS:
            if (folder / name).is_file():
                together.update(_canonical(folder / name))
    return together.hexdigest()[:16]


def _canonical(path: Path) -> bytes:
    """The configuration's content, whatever the order of its keys."""
    try:
        held = json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise DumpError(f"{path}: is not JSON ({error}). Save the model again.") from error
    if isinstance(held, dict):
        held = {key: value for key, value in held.items() if key not in _NOT_OF_THE_MODEL}
    return json.dumps(held, sort_keys=True).encode()
