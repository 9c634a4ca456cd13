"""What a running llama.cpp server samples with: an answer says what its request was run with, and `/props` the rest.

`/props` does not tell stop strings (`--reverse-prompt`) nor the default n_predict; an answer does (build of 2026).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from onepolicy.engines.http import HttpClient, StatusError
from onepolicy.engines.options import read_options
from onepolicy.engines.readable import readable
from onepolicy.engines.server import closed_if_unusable
from onepolicy.engines.spec import EngineSpec
from onepolicy.errors import UsageError
from onepolicy.integrations.llamacpp.answer import field
from onepolicy.integrations.llamacpp.engine import COMPLETION, PLAIN
from onepolicy.integrations.llamacpp.options import LlamaCppOptions
from onepolicy.integrations.llamacpp.protocol import effective
from onepolicy.sampling.convert import Note, ReadProtocol
from onepolicy.sampling.measured.effective import Effective
from onepolicy.sampling.measured.search import NOT_KNOWN

_SAID = {"/props": "said by /props", "generation_settings": "said by /completion"}
_DEFAULT = "llama.cpp's default"
_LIMITS = ("n_predict", "max_tokens", "max_completion_tokens")
_BESIDE = (*_LIMITS, "prompt", "stream", "n_cmpl", "n")
"""what is not sent of a request, so that it is short"""
NOTHING = 'root ::= ""'
"""a grammar of the empty text: a completion ends at once, whatever its limit is"""


def live_protocol(
    spec: EngineSpec, request: Mapping[str, Any], *, done: Callable[[str], None] = lambda _: None
) -> Effective:
    """What the server uses for a request that has these fields and leaves the others out.

    request: fields of `/completion`. done: told of each part. Raises: UsageError for a value that is none; EngineError.
    """
    if "messages" in request:
        raise UsageError("llama.cpp: give the fields of a /completion request; a chat request has other names.")
    client = HttpClient(spec.target, read_options(spec, LlamaCppOptions).of_url())
    with closed_if_unusable(client):
        props = client.get("/props")
        done("/props")
        used = _used(client, request)
        done("/completion")
        read = effective(request=request, props={**props, **_without_limit(props)}, generation_settings=used)
    client.close()
    return Effective(read=_told(read))


def _used(client: HttpClient, request: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a request for one token, with the limit that one without a limit has."""
    asked = {name: value for name, value in request.items() if name not in _BESIDE}
    used = _settings(client, {**asked, "n_predict": 1})
    mine = {*_LIMITS, *(() if "seed" in request else ("seed",))}
    found = {name: value for name, value in used.items() if name not in mine}
    if any(request.get(name) is not None for name in _LIMITS):
        return found
    try:
        return {**found, "n_predict": _settings(client, {"grammar": NOTHING}).get("n_predict")}
    except StatusError:
        return found


def _settings(client: HttpClient, body: dict[str, Any]) -> dict[str, Any]:
    with readable(f"{client.url}{COMPLETION}"):
        ids = field(client.post("/tokenize", {"content": PLAIN}), "tokens")
        answer = client.post(COMPLETION, {**body, "prompt": ids, "stream": False})
        return dict(field(answer, "generation_settings"))


def _without_limit(props: Mapping[str, Any]) -> dict[str, Any]:
    """The defaults in `/props` without n_predict, which is -1 there whatever the server was started with."""
    settings = dict(props.get("default_generation_settings") or {})
    params = dict(settings.get("params") or {})
    kept = {name: value for name, value in params.items() if name not in _LIMITS}
    return {"default_generation_settings": {**settings, "params": kept}} if params else {}


def _told(read: ReadProtocol) -> ReadProtocol:
    """Sources as they are said of a live server. What only the documentation says is not known."""
    sources, notes = {}, list(read.ignored)
    for name, source in read.sources.items():
        said = source
        for layer, words in _SAID.items():
            said = said.replace(f"in {layer}", words).replace(layer, words)
        sources[name] = said
        if _DEFAULT in source and name not in ("samples_per_prompt", "logprobs", "penalty_window"):
            sources[name] = f"{NOT_KNOWN}: {_DEFAULT} is shown"
            why = f"the server does not say it; {_DEFAULT} is shown"
            notes.append(Note(field=name, value=NOT_KNOWN, why=why, matters=True))
    if read.protocol.max_total_tokens is None:
        sources["max_total_tokens"] = f"{NOT_KNOWN}: /props says no n_ctx"
        why = "the length of the context is not said"
        notes.append(Note(field="max_total_tokens", value=NOT_KNOWN, why=why, matters=True))
    if _DEFAULT in read.sources.get("samples_per_prompt", ""):
        sources["samples_per_prompt"] = "measured: one comes back"
    return replace(read, sources=sources, ignored=tuple(notes))
