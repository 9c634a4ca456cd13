"""A request of OpenAI's API as a protocol, and back.

Servers that speak this API have fields besides, and defaults of their own: vLLM, SGLang, TensorRT-LLM and llama.cpp
have readers of their own. Source: openai/openai-python:src/openai/types/{completion,chat/completion}_create_params.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onepolicy.errors import UsageError
from onepolicy.records.processors import Processor
from onepolicy.records.protocol import SamplingProtocol
from onepolicy.sampling.convert import ReadProtocol, Written
from onepolicy.sampling.layers import Elsewhere, Layer, Reading, is_parts, words
from onepolicy.sampling.spellings import NO_LIMIT, Setting, limit, listed, mapping_of, texts
from onepolicy.sampling.writing import Writing

PARTS = ("request",)
ORDER: tuple[Processor, ...] = ("penalties", "temperature", "top_k", "top_p", "min_p")
SETTINGS = (
    Setting(theirs="temperature", field="temperature"),
    Setting(theirs="top_p", field="top_p"),
    Setting(theirs="presence_penalty", field="presence_penalty"),
    Setting(theirs="frequency_penalty", field="frequency_penalty"),
    Setting(theirs="n", field="samples_per_prompt"),
    Setting(theirs="stop", field="stop", read=texts, write=listed),
)
DEFAULTS = {"temperature": 1.0, "top_p": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "n": 1}
COMPLETION_NEW_TOKENS = 16
"""of a completion request that does not say; a chat goes up to the context"""
MOST_STOPS = 4
ELSEWHERE = Elsewhere(
    silent=words(
        "model prompt messages stream stream_options echo logprobs top_logprobs user metadata store service_tier "
        "safety_identifier prompt_cache_key prompt_cache_retention parallel_tool_calls verbosity"
    ),
    neutral={
        "logit_bias": ({},),
        "best_of": (1,),
        "suffix": ("",),
        "tools": ([],),
        "tool_choice": ("none",),
        "functions": ([],),
        "function_call": ("none",),
        "reasoning_effort": (),
        "modalities": (["text"],),
        "prediction": (),
        "web_search_options": (),
    },
)
_KNOWN = {setting.theirs for setting in SETTINGS} | {"max_tokens", "max_completion_tokens", "seed", "response_format"}


def read_protocol(source: Mapping[str, Any] | object, /) -> ReadProtocol:
    """The protocol of a request's body. Raises: UsageError for a value that is none, with where it stands."""
    if isinstance(source, Mapping) and is_parts(source, PARTS):
        return effective(**source)
    return effective(request=source)


def effective(*, request: Any = None) -> ReadProtocol:
    """What OpenAI's API documents for a request that leaves fields out, and where each value is from.

    Raises: UsageError.
    """
    reading = Reading(framework="OpenAI")
    asked = Layer(name="the request", values=mapping_of(request, what="OpenAI's request"))
    reading.take(SETTINGS, [asked, Layer(name="OpenAI's default", values=DEFAULTS)])
    _limits(reading, asked)
    _constraint(reading, asked)
    reading.take((Setting(theirs="seed", field="seed"),), [asked])
    reading.seeds()
    reading.rest(asked, known=_KNOWN, elsewhere=ELSEWHERE)
    reading.unlimited("the context ends a completion: send max_completion_tokens")
    return reading.finish(order=ORDER, order_source="OpenAI's API has penalties, temperature and top_p alone")


def _limits(reading: Reading, asked: Layer) -> None:
    given = [name for name in ("max_completion_tokens", "max_tokens") if asked.has(name)]
    if len({repr(asked.values[name]) for name in given}) > 1:
        raise UsageError(
            f"OpenAI: max_completion_tokens = {asked.values[given[0]]!r} and max_tokens = {asked.values[given[1]]!r} "
            "in the request contradict each other. Send one of them."
        )
    if given:
        reading.put("max_new_tokens", limit(asked.values[given[0]], f"OpenAI: {given[0]}"), asked.name)
    elif "messages" in asked.values:
        reading.put("max_new_tokens", NO_LIMIT, "OpenAI: up to the context")
    else:
        reading.put("max_new_tokens", COMPLETION_NEW_TOKENS, "OpenAI's default for completions")


def _constraint(reading: Reading, asked: Layer) -> None:
    response = mapping_of(asked.values.get("response_format"), what="OpenAI: response_format")
    if response.get("type") == "json_schema":
        schema = mapping_of(response.get("json_schema"), what="OpenAI: json_schema").get("schema")
        reading.constrain("json_schema", schema, name="response_format", source=asked.name)
    elif response.get("type") not in (None, "text"):
        reading.note("response_format", response, "a constraint that a protocol has no kind for", matters=True)


def write_protocol(protocol: SamplingProtocol, /) -> Written:
    """A request's fields. Raises: UsageError if OpenAI's API cannot say something that changes what is drawn."""
    writing = Writing(framework="OpenAI's API", protocol=protocol)
    request = writing.settings(SETTINGS) | {"max_completion_tokens": protocol.max_new_tokens}
    writing.said.update({"max_new_tokens", "constraint"})
    if not protocol.stop:
        del request["stop"]
    if len(protocol.stop) > MOST_STOPS:
        writing.refuse("stop", f"it takes at most {MOST_STOPS}")
    if protocol.temperature > _HOTTEST:
        writing.refuse("temperature", f"it takes none above {_HOTTEST:g}")
    for name in ("presence_penalty", "frequency_penalty"):
        if not -2.0 <= getattr(protocol, name) <= 2.0:
            writing.refuse(name, "it takes -2 to 2")
    request |= _write_constraint(writing)
    if (seed := writing.seed()) is not None:
        request["seed"] = seed
    writing.order(ORDER)
    return writing.finish({"request": request})


_HOTTEST = 2.0


def _write_constraint(writing: Writing) -> dict[str, Any]:
    constraint = writing.protocol.constraint
    if constraint is None:
        return {}
    if constraint.kind != "json_schema":
        writing.cannot("constraint", "it takes JSON schemas alone")
        return {}
    schema = writing.json_schema(constraint.text)
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "completion", "schema": schema}}}
