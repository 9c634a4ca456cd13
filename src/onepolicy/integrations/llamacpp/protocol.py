"""llama.cpp's requests, flags and `/props` as a protocol, and back.

Its defaults are not neutral: temperature 0.8, top_k 40, top_p 0.95, min_p 0.05, and the temperature acts last. A
sampler that the list of samplers leaves out is off, whatever its value. Source: ggml-org/llama.cpp:common/common.h
(`common_params_sampling`), common/sampling.cpp (the chain), tools/server/README.md (`/completion`, `/props`, flags).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from onepolicy.errors import UsageError
from onepolicy.integrations.llamacpp.protocol_tables import (
    ALIASES,
    DEFAULTS,
    ELSEWHERE,
    FLAGS,
    FLAGS_ELSEWHERE,
    KNOWN,
    LETTERS,
    NAMES,
    NEUTRAL,
    NOT_OURS,
    REQUEST_ALIASES,
    SETTINGS,
)
from onepolicy.records.processors import Processor
from onepolicy.records.protocol import SamplingProtocol
from onepolicy.sampling.convert import ReadProtocol, Written
from onepolicy.sampling.flags import flags_of, written_flags
from onepolicy.sampling.layers import Layer, Reading, is_parts
from onepolicy.sampling.spellings import NO_LIMIT, default_of, limit, mapping_of
from onepolicy.sampling.writing import Writing

PARTS = ("request", "flags", "props", "generation_settings")
RANDOM_SEEDS = (-1, 2**32 - 1)
EVERYTHING = 2**20
"""repeat_last_n that is written for all tokens: longer than any context; -1 is refused by servers of 2026"""
_OFF_WITHOUT: dict[Processor, tuple[str, ...]] = {
    "penalties": ("repetition_penalty", "presence_penalty", "frequency_penalty"),
    "temperature": ("temperature",),
    "top_k": ("top_k",),
    "top_p": ("top_p",),
    "min_p": ("min_p",),
}


def read_protocol(source: Mapping[str, Any] | object, /) -> ReadProtocol:
    """The protocol of a request's body, a list of flags, an answer of `/props` or `/completion`, or a mapping of PARTS.

    Raises: UsageError for a value that is none, with where it stands.
    """
    if isinstance(source, list | tuple):
        return effective(flags=source)
    if isinstance(source, Mapping) and "default_generation_settings" in source:
        return effective(props=source)
    if isinstance(source, Mapping) and is_parts(source, PARTS):
        return effective(**source)
    if isinstance(source, Mapping) and "generation_settings" in source:
        return effective(generation_settings=source["generation_settings"])
    return effective(request=source)


def effective(
    *, request: Any = None, flags: Any = None, props: Any = None, generation_settings: Any = None
) -> ReadProtocol:
    """What a server samples with for a request that leaves fields out, and where each value is from.

    props: the answer of `/props`, which has in it what the flags say and so goes over them. generation_settings: of an
    answer of `/completion`, which is what was used and goes over all. Raises: UsageError.
    """
    reading = Reading(framework="llama.cpp")
    asked = Layer(name="the request", values=_renamed(mapping_of(request, what="llama.cpp's request")))
    started = Layer(name="the flags", values=flags_of(flags, what="llama.cpp's flags", aliases=ALIASES))
    served = _served(mapping_of(props, what="/props"))
    used = Layer(name="generation_settings", values=_parameters(generation_settings, "generation_settings"))
    layers = [used, asked, served, started, Layer(name="llama.cpp's default", values=DEFAULTS)]
    reading.take(SETTINGS, layers)
    reading.take(FLAGS, [started])
    _limits(reading, layers, started)
    _seed(reading, layers)
    _constraint(reading, layers)
    _logprobs(reading, layers)
    order, order_source = _samplers(reading, layers)
    _window(reading)
    for layer, elsewhere in ((used, ELSEWHERE), (asked, ELSEWHERE), (served, ELSEWHERE), (started, FLAGS_ELSEWHERE)):
        reading.rest(layer, known=KNOWN, elsewhere=elsewhere)
    _scope(reading)
    reading.unlimited("the context ends a completion: give n_predict, --ctx-size or /props")
    return reading.finish(order=order, order_source=order_source)


def _renamed(values: dict[str, Any]) -> dict[str, Any]:
    """Under the names of `/completion`."""
    twice = [name for name, other in REQUEST_ALIASES.items() if name in values and other in values]
    if any(values[name] != values[REQUEST_ALIASES[name]] for name in twice):
        other = REQUEST_ALIASES[twice[0]]
        raise UsageError(
            f"llama.cpp: {twice[0]} = {values[twice[0]]!r} and {other} = {values[other]!r} are one setting. Leave one."
        )
    return {REQUEST_ALIASES.get(name, name): value for name, value in values.items()}


def _served(props: dict[str, Any]) -> Layer:
    """The parameters in `/props`, numbers as they were before the server kept them as float32."""
    settings = mapping_of(props.get("default_generation_settings"), what="default_generation_settings")
    found = _parameters(settings.get("params") or settings, "default_generation_settings")
    return Layer(name="/props", values=found | ({"n_ctx": settings["n_ctx"]} if "n_ctx" in settings else {}))


def _parameters(values: Any, what: str) -> dict[str, Any]:
    """Parameters as a server reports them; dotted names are of its speculative decoding."""
    found = _renamed(mapping_of(values, what=what))
    return {name: _decimal(value) for name, value in found.items() if not name.startswith("speculative.")}


def _decimal(value: Any) -> Any:
    """The shortest decimal that is this float32: 0.949999988079071 is 0.95."""
    if not isinstance(value, float) or not -_LARGEST < value < _LARGEST:
        return value
    packed = struct.pack("f", value)
    shortest = (float(f"{value:.{digits}g}") for digits in range(1, 10))
    return next((number for number in shortest if struct.pack("f", number) == packed), value)


_LARGEST = 3.4e38
"""beyond it a float32 has no numbers"""


def _first(layers: list[Layer], name: str) -> Layer | None:
    return next((layer for layer in layers if layer.has(name)), None)


def _limits(reading: Reading, layers: list[Layer], started: Layer) -> None:
    context = next((layer for layer in layers if layer.values.get("n_ctx") or layer.values.get("ctx_size")), None)
    if context is not None:
        size = limit(
            context.values.get("n_ctx") or context.values["ctx_size"], f"llama.cpp: the context in {context.name}"
        )
        slots = started.values.get("parallel") if context is started else 1
        reading.put("max_total_tokens", size // slots if isinstance(slots, int) and slots > 1 else size, context.name)
    layer = _first(layers, "n_predict")
    most = limit(layer.values["n_predict"], f"llama.cpp: n_predict in {layer.name}") if layer else NO_LIMIT
    source = layer.name if layer else "llama.cpp's default"
    if most == NO_LIMIT and context is not None:
        most, source = reading.values["max_total_tokens"], context.name
    reading.put("max_new_tokens", most, source)


def _seed(reading: Reading, layers: list[Layer]) -> None:
    layer = _first(layers, "seed")
    if layer is not None and layer.values["seed"] not in RANDOM_SEEDS:
        reading.put("seed", layer.values["seed"], layer.name)
    reading.seeds()


def _constraint(reading: Reading, layers: list[Layer]) -> None:
    for layer in layers:
        grammar, schema = layer.values.get("grammar"), layer.values.get("json_schema")
        if grammar not in (None, "") and schema not in (None, ""):
            raise UsageError(f"llama.cpp: grammar and json_schema in {layer.name}: it takes one of them. Leave one.")
        reading.constrain("grammar", grammar, name="grammar", source=layer.name)
        reading.constrain("json_schema", schema, name="json_schema", source=layer.name)
        if grammar is not None or schema is not None:
            return


def _logprobs(reading: Reading, layers: list[Layer]) -> None:
    layer = _first(layers, "post_sampling_probs")
    processed = layer is not None and layer.values["post_sampling_probs"] is True
    reading.put("logprobs", "processed" if processed else "raw", layer.name if layer else "llama.cpp's default")


def _samplers(reading: Reading, layers: list[Layer]) -> tuple[tuple[Processor, ...], str]:
    """The order, and what is off as it is not in it."""
    layer = next(layer for layer in layers if layer.has("samplers") or layer.has("sampler_seq"))
    names = _names(layer)
    for name in names:
        if name not in _OFF_WITHOUT and name not in NOT_OURS:
            reading.note("samplers", name, "not understood: llama.cpp knows no such sampler", matters=True)
    order = tuple(dict.fromkeys(name for name in names if name in _OFF_WITHOUT))
    for sampler, fields in _OFF_WITHOUT.items():
        for name in fields if sampler not in order else ():
            if reading.values.get(name) != default_of(name):
                reading.put(name, default_of(name), f"samplers in {layer.name}, which leaves {sampler} out")
    return order, f"samplers in {layer.name}"


def _names(layer: Layer) -> list[str]:
    given = layer.values.get("samplers")
    if given is None:
        return [LETTERS.get(letter, letter) for letter in str(layer.values["sampler_seq"])]
    names = given.split(";") if isinstance(given, str) else given
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise UsageError(
            f"llama.cpp: samplers = {given!r} in {layer.name}: this is no list of names. Correct it there."
        )
    plain = [name.replace("-", "_") for name in names if name]
    return [NAMES.get(name, name) for name in plain]


def _window(reading: Reading) -> None:
    """repeat_last_n: 0 switches the penalties off, and without penalties it means nothing."""
    values, names = reading.values, _OFF_WITHOUT["penalties"]
    window = values.pop("penalty_window", None)
    source = reading.sources.pop("penalty_window", "llama.cpp's default")
    if window == 0:
        for name in names:
            if values.get(name) != default_of(name):
                reading.put(name, default_of(name), f"repeat_last_n = 0 in {source}")
    total = values.get("max_total_tokens")
    everything = window == -1 or (isinstance(window, int) and window >= (total or EVERYTHING))
    if any(values.get(name) != default_of(name) for name in names) and not everything:
        reading.put("penalty_window", window, source)


def _scope(reading: Reading) -> None:
    """Where the same value is another distribution than elsewhere."""
    for name in ("presence_penalty", "frequency_penalty"):
        if reading.values.get(name):
            why = "llama.cpp penalises tokens of the prompt too, as far as repeat_last_n goes"
            reading.note(name, reading.values[name], why, matters=True)
    if reading.values.get("ignore_eos"):
        reading.note("ignore_eos", True, _NO_EOS, matters=True)


_NO_EOS = "llama.cpp makes the end token impossible, where others draw it and go on"


def write_protocol(protocol: SamplingProtocol, /) -> Written:
    """A body for `/completion` with every sampler's setting, and the flags beside it: {"request": ..., "flags": [...]}.

    Raises: UsageError if llama.cpp cannot say something that changes what is drawn.
    """
    writing = Writing(framework="llama.cpp", protocol=protocol)
    request = NEUTRAL | writing.settings(SETTINGS) | {"samplers": list(protocol.processors)}
    request |= {"n_predict": protocol.max_new_tokens, "repeat_last_n": _write_window(writing)}
    request |= {"post_sampling_probs": protocol.logprobs == "processed"}
    writing.said.update({"max_new_tokens", "logprobs", "constraint", "max_total_tokens", "chat_template"})
    request["seed"] = -1 if (seed := writing.seed(random=RANDOM_SEEDS)) is None else seed
    request |= _write_constraint(writing)
    _write_scope(writing)
    writing.order(protocol.processors)
    return writing.finish({"request": request, "flags": written_flags(_write_flags(writing))})


def _write_window(writing: Writing) -> int:
    """All tokens: as many as the context has, where that is known."""
    protocol = writing.protocol
    writing.said.add("penalty_window")
    if not protocol.has_penalties:
        if protocol.penalty_window is not None:
            writing.note("penalty_window", "no penalty is on: the window means nothing")
        return 0
    if protocol.penalty_window is None:
        return protocol.max_total_tokens or EVERYTHING
    if protocol.penalty_window >= (protocol.max_total_tokens or EVERYTHING):
        writing.note("penalty_window", "it holds all tokens of the context")
    return protocol.penalty_window


def _write_constraint(writing: Writing) -> dict[str, Any]:
    constraint = writing.protocol.constraint
    if constraint is None:
        return {}
    if constraint.kind == "regex":
        writing.cannot("constraint", "it takes grammars and JSON schemas")
    if constraint.kind == "json_schema":  # the server drops a text in silence
        return {"json_schema": writing.json_schema(constraint.text)}
    return {"grammar": constraint.text}


def _write_flags(writing: Writing) -> dict[str, Any]:
    protocol = writing.protocol
    flags: dict[str, Any] = {}
    if protocol.max_total_tokens is not None:
        flags |= {"ctx_size": protocol.max_total_tokens, "parallel": 1}
    if protocol.chat_template is not None:
        flags["chat_template"] = protocol.chat_template
    return flags


def _write_scope(writing: Writing) -> None:
    protocol = writing.protocol
    for name in ("presence_penalty", "frequency_penalty"):
        if getattr(protocol, name):
            writing.refuse(name, "it penalises tokens of the prompt too")
    if protocol.ignore_eos:
        writing.note("ignore_eos", _NO_EOS, matters=True)
    template = protocol.chat_template or ""
    if len(template) == _SHA256 and set(template) <= set("0123456789abcdef"):
        writing.refuse("chat_template", "this is a hash; --chat-template takes a name or a template")


_SHA256 = 64
