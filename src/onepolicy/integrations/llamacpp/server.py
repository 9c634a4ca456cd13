"""A llama.cpp server in this process."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from onepolicy.engines.models import PACKAGED_MODELS, is_packaged, packaged_gguf
from onepolicy.engines.threads import sleeping_threads
from onepolicy.errors import EngineError, MissingExtraError
from onepolicy.integrations.llamacpp.options import LlamaCppOptions

SILENT = -1
"""xllamacpp's verbosity at which nothing is written to stderr; what fails arrives as an exception or an HTTP status"""


@dataclass(slots=True, kw_only=True, eq=False)
class ServedFile:
    """A GGUF file behind a server of this process, until `close`."""

    target: str
    """as the spec names it"""
    gguf: Path
    server: Any

    @property
    def url(self) -> str:
        """Where it listens: a free port of 127.0.0.1."""
        return str(self.server.listening_address)

    def close(self) -> None:
        """Stop the server and its threads."""
        self.server = None


def gguf_of(target: str) -> Path:
    """The file that a spec's target names: a path, or a packaged model. Raises: EngineError if there is none."""
    if is_packaged(target):
        return packaged_gguf(target)
    path = Path(target).expanduser()
    if not path.is_file():
        raise EngineError(
            f"there is no GGUF file {path}. Check the path, or give one of: {', '.join(PACKAGED_MODELS)}; a server "
            "that is already running is llamacpp:http://host:port."
        )
    return path


def serve(target: str, options: LlamaCppOptions) -> ServedFile:
    """Start a server of the GGUF file that a spec's target names.

    Raises: EngineError if there is none or llama.cpp cannot load it, MissingExtraError.
    """
    gguf = gguf_of(target)
    xllamacpp = _xllamacpp()
    params = xllamacpp.CommonParams()
    params.model.path = str(gguf)
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.n_parallel = options.parallel
    params.n_ctx = options.ctx * options.parallel  # the server shares it out among its slots
    params.special = True  # spell special tokens out in the text
    params.fit_params = False  # it would lower n_ctx to what it thinks fits
    params.n_gpu_layers = 0  # the engine says device=cpu
    params.cache_ram_mib = 0  # a sequence is gone on with in its own slot, and never again later
    params.ui = False
    params.verbosity = SILENT
    for cpu in (params.cpuparams, params.cpuparams_batch):
        cpu.n_threads = options.threads or os.cpu_count() or 1
    try:
        return ServedFile(target=target, gguf=gguf, server=xllamacpp.Server(params))
    except RuntimeError as error:
        raise EngineError(
            f"llama.cpp cannot load {gguf} ({error}). Check that it is a complete GGUF file of a model that this "
            "version of xllamacpp knows, and that there is memory for it; ctx and parallel lower what it takes."
        ) from error


def _xllamacpp() -> Any:
    try:
        with sleeping_threads():
            return import_module("xllamacpp")
    except ImportError as error:
        raise MissingExtraError(package="xllamacpp", extra="llamacpp", needed_for="the engine 'llamacpp'") from error
