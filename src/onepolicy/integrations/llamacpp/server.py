"""A llama.cpp server in this process and the connection to it."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx

from onepolicy.engines.threads import sleeping_threads
from onepolicy.errors import EngineError, MissingExtraError
from onepolicy.integrations.llamacpp.options import LlamaCppOptions

SILENT = -1
"""xllamacpp's verbosity at which nothing is written to stderr; what fails arrives as an exception or an HTTP status"""


class Server:
    """Serves one GGUF file on a free port of 127.0.0.1 until `close`."""

    def __init__(self, gguf: Path, options: LlamaCppOptions) -> None:
        self._options = options
        self._server = _start(gguf, options)
        self._client = httpx.Client(base_url=self._server.listening_address, timeout=options.timeout, trust_env=False)

    def get(self, path: str) -> dict[str, Any]:
        """The JSON that a path answers. Raises EngineError."""
        return self._answer(f"GET {path}", self._client.build_request("GET", path))

    def post(self, path: str, body: dict[str, Any], *, asked_for: str) -> dict[str, Any]:
        """The JSON that a path answers to `body`. Raises EngineError that names `asked_for`."""
        return self._answer(asked_for, self._client.build_request("POST", path, json=body))

    def _answer(self, asked_for: str, request: httpx.Request) -> dict[str, Any]:
        try:
            response = self._client.send(request)
        except httpx.TimeoutException as error:
            raise EngineError(
                f"{asked_for}: the llama.cpp server did not answer within {self._options.timeout:g} s. "
                "Raise the option timeout, or lower max_new_tokens."
            ) from error
        except httpx.TransportError as error:
            raise EngineError(
                f"{asked_for}: the connection to the llama.cpp server broke ({error}). "
                "Run the command again; a run resumes."
            ) from error
        if response.is_error:
            raise EngineError(
                f"{asked_for}: the llama.cpp server refused ({response.status_code}): {_reason(response)}"
            )
        answer: dict[str, Any] = response.json()
        return answer

    def close(self) -> None:
        """Stop the server and its threads."""
        self._client.close()
        self._server = None


def _start(gguf: Path, options: LlamaCppOptions) -> Any:
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
    params.cache_ram_mib = 0  # prompts are never reused, so none are kept
    params.ui = False
    params.verbosity = SILENT
    for cpu in (params.cpuparams, params.cpuparams_batch):
        cpu.n_threads = options.threads or os.cpu_count() or 1
    try:
        return xllamacpp.Server(params)
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


def _reason(response: httpx.Response) -> str:
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return response.text[:200]
