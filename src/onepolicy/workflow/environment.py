"""What a reading was computed with, as far as it can change a number."""

from __future__ import annotations

import os
import platform
import sys

from onepolicy.engines.contract import Engine
from onepolicy.records.reading import EngineInfo
from onepolicy.records.run import Run
from onepolicy.version import VERSION

_PACKAGES = ("numpy", "torch", "transformers", "tokenizers", "xllamacpp", "vllm")


def engine_info(run: Run, engine: Engine) -> EngineInfo:
    """What the engine says that it is; its tokenizer is kept in the run and named by its hash there."""
    content = engine.tokenizer_file()
    name = "" if content is None else run.add_tokenizer(content)
    return engine.info.model_copy(update={"tokenizer_hash": name})


def environment() -> dict[str, str]:
    """Versions of the packages that are loaded, of Python and of the machine. Nothing that identifies a person."""
    found = {
        "onepolicy": VERSION,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpus": str(os.cpu_count()),
    }
    for name in _PACKAGES:
        version = getattr(sys.modules.get(name), "__version__", None)
        if version is not None:
            found[name] = str(version)
    return found
