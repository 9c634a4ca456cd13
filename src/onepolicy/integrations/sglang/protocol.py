"""SGLang's sampling parameters, requests and start flags as a protocol, and back.

Source: sgl-project/sglang:python/sglang/srt/sampling/sampling_params.py (fields and defaults),
python/sglang/srt/layers/sampler.py (the order, and that logprobs are after the temperature and before truncation),
python/sglang/srt/sampling/penaltylib/repetition_penalty.py (the completion alone),
python/sglang/srt/configs/model_config.py (`get_default_sampling_params`, for the OpenAI endpoints alone),
python/sglang/srt/managers/tokenizer_manager.py (`preferred_sampling_params`; a long prompt is cut on the right).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onepolicy.errors import UsageError
from onepolicy.integrations.sglang.protocol_tables import (
    ALIASES,
    ELSEWHERE,
    FLAGS,
    FLAGS_ELSEWHERE,
    FROM_MODEL,
    KINDS,
    NATIVE,
    NATIVE_DEFAULTS,
    OPENAI,
    OTHER_FLAGS,
)
from onepolicy.records.processors import Processor
from onepolicy.records.protocol import SamplingProtocol
from onepolicy.sampling.convert import ReadProtocol, Written
from onepolicy.sampling.flags import flags_of, written_flags
from onepolicy.sampling.layers import Layer, Reading, is_parts
from onepolicy.sampling.spellings import NO_LIMIT, Setting, ids, limit, mapping_of
from onepolicy.sampling.writing import Writing

PARTS = ("request", "sampling_params", "flags", "generation_config", "environment")
JOINT: tuple[Processor, ...] = ("penalties", "temperature", "top_p", "top_k", "min_p")
"""top_k and top_p are both measured on all tokens, which is top_p before top_k"""
IN_TURN: tuple[Processor, ...] = ("penalties", "temperature", "top_k", "top_p", "min_p")
"""of the flashinfer backend where min_p is on"""
RAW_VARIABLE = "SGLANG_RETURN_ORIGINAL_LOGPROB"
DEFAULT_NEW_TOKENS = 128
OPENAI_DEFAULT_NEW_TOKENS = 16
"""of `/v1/completions`; a chat goes up to the context"""


def read_protocol(source: Mapping[str, Any] | object, /) -> ReadProtocol:
    """The protocol of a request's body, of SamplingParams, a list of start flags, or a mapping of PARTS to them.

    Raises: UsageError for a value that is none, with where it stands.
    """
    if isinstance(source, list | tuple):
        return effective(flags=source)
    if isinstance(source, Mapping):
        return effective(**source) if is_parts(source, PARTS) else effective(request=source)
    return effective(sampling_params=source)


def effective(
    *,
    request: Any = None,
    sampling_params: Any = None,
    flags: Any = None,
    generation_config: Any = None,
    environment: Any = None,
) -> ReadProtocol:
    """What a server samples with for a request that leaves fields out, and where each value is from.

    request: a body of `/generate` (with sampling_params in it), `/v1/completions` (with a prompt) or
    `/v1/chat/completions` (with messages). generation_config: of the model's folder; it acts on the latter two alone,
    unless the server was started with `--sampling-defaults openai`. environment: variables of the server.
    Raises: UsageError.
    """
    reading = Reading(framework="SGLang")
    body = mapping_of(request, what="SGLang's request")
    openai = "messages" in body or "prompt" in body
    started = Layer(name="the start flags", values=flags_of(flags, what="SGLang's flags", aliases=ALIASES))
    asked = _asked(body, sampling_params, openai)
    layers = [asked, *_defaults(reading, asked, started, generation_config, openai=openai), _neutral(openai)]
    settings = OPENAI if openai else NATIVE
    reading.take(settings, layers)
    _limits(reading, asked, layers, "messages" in body)
    _server(reading, started, generation_config, mapping_of(environment, what="SGLang's environment"))
    _constraint(reading, layers)
    _seed(reading, layers[:-1], openai)
    known = {setting.theirs for setting in settings} | KINDS.keys() | _LENGTHS | {"seed" if openai else "sampling_seed"}
    for layer in layers[:-1]:
        reading.rest(layer, known=known, elsewhere=ELSEWHERE)
    reading.rest(started, known=OTHER_FLAGS, elsewhere=FLAGS_ELSEWHERE)
    _scope(reading)
    reading.unlimited("the context ends a completion: give --context-length, or a limit in the request")
    return reading.finish(order=_order(reading, started), order_source="SGLang's sampler, which has one order")


_LENGTHS = {"max_new_tokens", "max_tokens", "max_completion_tokens"}


def _asked(body: dict[str, Any], sampling_params: Any, openai: bool) -> Layer:
    if openai:
        return Layer(name="the request", values=body)
    inner = mapping_of(body.get("sampling_params"), what="SGLang: sampling_params in the request")
    if body and "sampling_params" not in body:
        inner = {name: value for name, value in body.items() if name not in ELSEWHERE.silent}
    names = [setting.theirs for setting in NATIVE]
    given = mapping_of(
        sampling_params, what="SGLang's sampling_params", names=[*names, *_LENGTHS, *KINDS, "sampling_seed"]
    )
    return Layer(name="sampling_params", values={**inner, **given})


def _neutral(openai: bool) -> Layer:
    return Layer(name="SGLang's neutral default" if openai else "SGLang's default", values=NATIVE_DEFAULTS)


def _defaults(reading: Reading, asked: Layer, started: Layer, model: Any, *, openai: bool) -> list[Layer]:
    """The layers between a request and the neutral values."""
    if not openai:
        where = "--preferred-sampling-params"
        values = mapping_of(started.values.get("preferred_sampling_params"), what=where)
        return [Layer(name=where, values=values)]
    if started.values.get("sampling_defaults", "model") != "model":
        return []
    config = mapping_of(model, what="generation_config.json")
    absent = [name for name in FROM_MODEL if not asked.has(name)]
    if model is None and absent:
        filled = ", ".join(absent)
        why = (
            f"SGLang takes {filled} from the one in the model's folder; neutral values stand here. Give it or send them"
        )
        reading.note("generation_config.json", "not given", why, matters=True)
    return [Layer(name="generation_config.json", values={name: config.get(name) for name in FROM_MODEL})]


def _limits(reading: Reading, asked: Layer, layers: list[Layer], chat: bool) -> None:
    names = ("max_completion_tokens", "max_tokens", "max_new_tokens")
    for layer in layers[:-1]:
        name = next((name for name in names if layer.has(name)), None)
        if name is not None:
            reading.put("max_new_tokens", limit(layer.values[name], f"SGLang: {name} in {layer.name}"), layer.name)
            return
    openai = "messages" in asked.values or "prompt" in asked.values
    if chat or "max_new_tokens" in asked.values:
        reading.put("max_new_tokens", NO_LIMIT, "SGLang: up to the context")
    else:
        most = OPENAI_DEFAULT_NEW_TOKENS if openai else DEFAULT_NEW_TOKENS
        reading.put("max_new_tokens", most, "SGLang's default")


def _server(reading: Reading, started: Layer, model: Any, environment: dict[str, Any]) -> None:
    """What the flags and the variables say beside the sampling parameters."""
    reading.take(FLAGS, [started])
    if started.values.get("allow_auto_truncate") is True:
        reading.put("prompt_truncation", "right", "--allow-auto-truncate, which cuts at the end")
    eos = mapping_of(model, what="generation_config.json").get("eos_token_id")
    if eos is not None and not reading.values.get("ignore_eos"):
        own = reading.values.get("stop_token_ids", ())
        source = "eos_token_id in generation_config.json" + (", and the request" if own else "")
        reading.put("stop_token_ids", (*own, *ids(eos, "SGLang: eos_token_id in generation_config.json")), source)
    most = reading.values.get("max_total_tokens")
    if most is not None and reading.values["max_new_tokens"] == NO_LIMIT:
        reading.put("max_new_tokens", most, "--context-length")
    raw = str(environment.get(RAW_VARIABLE, "")).lower() in ("1", "true")
    reading.put("logprobs", "raw" if raw else "processed", RAW_VARIABLE if raw else "SGLang's default")


def _constraint(reading: Reading, layers: list[Layer]) -> None:
    for layer in layers[:-1]:
        found = {name: layer.values[name] for name in KINDS if layer.has(name)}
        response = mapping_of(layer.values.get("response_format"), what="SGLang: response_format")
        if response.get("type") == "json_schema":
            found["json_schema"] = mapping_of(response.get("json_schema"), what="SGLang: json_schema").get("schema")
        elif response.get("type") not in (None, "text"):
            reading.note("response_format", response, "a constraint that a protocol has no kind for", matters=True)
        if len(found) > 1:
            raise UsageError(f"SGLang: {' and '.join(found)} in {layer.name}: it takes one of them. Leave one.")
        for name, value in found.items():
            reading.constrain(KINDS[name], value, name=name, source=layer.name)
            return


def _seed(reading: Reading, layers: list[Layer], openai: bool) -> None:
    reading.take((Setting(theirs="seed" if openai else "sampling_seed", field="seed"),), layers)
    reading.seeds()


def _scope(reading: Reading) -> None:
    """Where the same value is another distribution than elsewhere."""
    values = reading.values
    if values.get("repetition_penalty", 1.0) != 1.0:
        why = "SGLang penalises tokens of the completion alone, not those of the prompt"
        reading.note("repetition_penalty", values["repetition_penalty"], why, matters=True)
    cut = values.get("top_p", 1.0) != 1.0 or values.get("top_k", 0) or values.get("min_p", 0.0)
    if values["logprobs"] == "processed" and cut:
        why = "SGLang's logprobs are after the temperature and before truncation: neither raw nor what is drawn from"
        reading.note("logprobs", "processed", why, matters=True)


def _order(reading: Reading, started: Layer) -> tuple[Processor, ...]:
    in_turn = reading.values.get("min_p", 0.0) and started.values.get("sampling_backend", "flashinfer") == "flashinfer"
    return IN_TURN if in_turn else JOINT


def write_protocol(protocol: SamplingProtocol, /) -> Written:
    """A body for `/generate` with every field, and what the server is started with.

    {"request": {"sampling_params": ...}, "flags": [...], "environment": ...}. The order is that of the flashinfer
    backend. Raises: UsageError if SGLang cannot say something that changes what is drawn.
    """
    writing = Writing(framework="SGLang", protocol=protocol)
    params = writing.settings(NATIVE) | {"max_new_tokens": protocol.max_new_tokens}
    writing.said.update({"max_new_tokens", "constraint"})
    if protocol.constraint:
        name = next(name for name, kind in KINDS.items() if kind == protocol.constraint.kind)
        params[name] = protocol.constraint.text
    if (seed := writing.seed()) is not None:
        params["sampling_seed"] = seed
    flags = {name: value for name, value in writing.settings(FLAGS).items() if value is not None}
    content = {"request": {"sampling_params": params}, "flags": flags | {"sampling_defaults": "openai"}}
    content["environment"] = {RAW_VARIABLE: "1"} if protocol.logprobs == "raw" else {}
    _write_server(writing, content["flags"])
    _write_scope(writing)
    writing.order(IN_TURN if protocol.min_p else JOINT)
    return writing.finish({**content, "flags": written_flags(content["flags"])})


def _write_server(writing: Writing, flags: dict[str, Any]) -> None:
    protocol = writing.protocol
    writing.said.update({"logprobs", "prompt_truncation"})
    if protocol.prompt_truncation == "right":
        flags["allow_auto_truncate"] = True
    elif protocol.prompt_truncation == "left":
        writing.cannot("prompt_truncation", "--allow-auto-truncate cuts on the right")
    writing.cannot("max_prompt_tokens", "only --context-length limits a prompt")


def _write_scope(writing: Writing) -> None:
    protocol = writing.protocol
    if protocol.repetition_penalty != 1.0:
        writing.refuse("repetition_penalty", "it penalises tokens of the completion alone, not those of the prompt")
    for name in ("presence_penalty", "frequency_penalty"):
        if not -2.0 <= getattr(protocol, name) <= 2.0:
            writing.refuse(name, "it takes -2 to 2")
    if protocol.logprobs == "processed" and (protocol.top_p < 1.0 or protocol.top_k or protocol.min_p):
        writing.note("logprobs", "its logprobs are after the temperature and before truncation", matters=True)
