"""A protocol as a vLLM request and start flags. Source: see protocol.py."""

from __future__ import annotations

from typing import Any

from onepolicy.integrations.vllm.protocol_tables import (
    COMPLETIONS,
    FLAGS,
    HIGHEST_TEMPERATURE,
    KINDS,
    LOWEST_TEMPERATURE,
    ORDER,
)
from onepolicy.records.protocol import SamplingProtocol
from onepolicy.sampling.convert import Written
from onepolicy.sampling.flags import written_flags
from onepolicy.sampling.writing import Writing


def write_protocol(protocol: SamplingProtocol, /) -> Written:
    """A completion request with every field, and the start flags beside it: {"request": ..., "flags": [...]}.

    Raises: UsageError if vLLM cannot say something that changes what is drawn.
    """
    writing = Writing(framework="vLLM", protocol=protocol)
    request = writing.settings(COMPLETIONS) | {"max_tokens": protocol.max_new_tokens}
    writing.said.update({"max_new_tokens", "max_total_tokens", "constraint", "add_bos", "add_generation_prompt"})
    _write_limits(writing)
    request |= _write_prompt(writing)
    if protocol.constraint:
        name = next(name for name, kind in KINDS.items() if kind == protocol.constraint.kind)
        request["structured_outputs"] = {name: protocol.constraint.text}
    if (seed := writing.seed(random=(-1,))) is not None:
        request["seed"] = seed
    flags = {"generation_config": "vllm"} | {k: v for k, v in writing.settings(FLAGS).items() if v is not None}
    if protocol.max_total_tokens is not None:
        flags["max_model_len"] = protocol.max_total_tokens
    _write_template(writing)
    writing.order(ORDER)
    return writing.finish({"request": request, "flags": written_flags(flags)})


def _write_limits(writing: Writing) -> None:
    protocol = writing.protocol
    if protocol.temperature > HIGHEST_TEMPERATURE:
        writing.refuse("temperature", f"it takes none above {HIGHEST_TEMPERATURE:g}")
    if 0 < protocol.temperature < LOWEST_TEMPERATURE:
        writing.refuse("temperature", f"it raises it to {LOWEST_TEMPERATURE}")
    for name in ("presence_penalty", "frequency_penalty"):
        if not -2.0 <= getattr(protocol, name) <= 2.0:
            writing.refuse(name, "it takes -2 to 2")
    if protocol.is_greedy and protocol.samples_per_prompt > 1:
        writing.refuse("samples_per_prompt", "it takes n = 1 only at temperature 0; they would be the same")


def _write_prompt(writing: Writing) -> dict[str, Any]:
    protocol, found = writing.protocol, {}
    if protocol.prompt_truncation is None:
        writing.said.add("prompt_truncation")
        writing.cannot("max_prompt_tokens", "it refuses only what does not fit into --max-model-len")
    else:
        writing.said.update({"prompt_truncation", "max_prompt_tokens"})
        most = protocol.max_prompt_tokens
        found = {"truncate_prompt_tokens": -1 if most is None else most, "truncation_side": protocol.prompt_truncation}
    if protocol.add_bos:
        writing.cannot("add_bos", "it adds the special tokens that the tokenizer adds")
    return found | {"add_special_tokens": protocol.add_bos is not False}


def _write_template(writing: Writing) -> None:
    template = writing.protocol.chat_template
    if template is not None and len(template) == _SHA256 and set(template) <= set("0123456789abcdef"):
        writing.refuse("chat_template", "this is a hash; --chat-template takes a file or its text")
    if not writing.protocol.add_generation_prompt:
        writing.cannot("add_generation_prompt", "a completion request renders no messages")


_SHA256 = 64
