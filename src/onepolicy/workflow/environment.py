"""What a reading was computed with, as far as it can change a number."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections import Counter
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from onepolicy.engines.contract import Engine
from onepolicy.records.reading import EngineInfo
from onepolicy.records.run import Run
from onepolicy.version import VERSION

PACKAGES = (
    *("numpy", "torch", "transformers", "tokenizers", "xllamacpp", "vllm"),
    *("accelerate", "peft", "triton", "flash_attn", "flashinfer", "xformers"),
)
"""named only where they are loaded"""


def engine_info(run: Run, engine: Engine) -> EngineInfo:
    """What the engine says that it is; its tokenizer is kept in the run and named by its hash there."""
    content = engine.tokenizer_file()
    name = "" if content is None else run.add_tokenizer(content)
    return engine.info.model_copy(update={"tokenizer_hash": name})


def environment() -> dict[str, str]:
    """Versions of Python and of what is loaded, and the kind of machine. Nothing that identifies a person."""
    found = {
        "onepolicy": VERSION,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpus": str(os.cpu_count()),
    }
    for name in PACKAGES:
        loaded = getattr(sys.modules.get(name), "__version__", None)
        if loaded is not None:
            found[name] = str(loaded)
    return found | {name: kind for name, kind in (("cpu", _cpu()), ("gpu", _gpu()), ("driver", _driver())) if kind}


def installed() -> dict[str, str]:
    """Versions of the packages that may be loaded later, by what is installed."""
    found = {}
    for name in PACKAGES:
        if name not in sys.modules:
            try:
                found[name] = version(name)
            except PackageNotFoundError:
                continue
    return found


def _cpu() -> str:
    """Its model; empty if the system does not say."""
    cpus = Path("/proc/cpuinfo")
    named = re.search(r"^model name\s*:\s*(.+)$", cpus.read_text(), re.MULTILINE) if cpus.exists() else None
    return named[1].strip() if named else platform.processor()


def _gpu() -> str:
    """The accelerators that torch was started on, such as `2 x NVIDIA H200`; empty if there are none."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return ""
    names = Counter(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
    return ", ".join(f"{count} x {name}" for name, count in sorted(names.items()))


def _driver() -> str:
    """The version of NVIDIA's driver, if an accelerator is in use; empty if the system does not say."""
    said = Path("/proc/driver/nvidia/version")
    return driver_in(said.read_text()) if _gpu() and said.exists() else ""


def driver_in(said: str) -> str:
    """The version in what the kernel module says of itself; empty if there is none."""
    named = re.search(r"Kernel Module\b.*?\s(\d+\.[\d.]+)", said)
    return named[1] if named else ""
