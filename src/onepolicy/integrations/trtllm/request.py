"""Requests with the fields that TensorRT-LLM knows and no other: it refuses a body with any field more.

Source: `CompletionRequest` in tensorrt_llm/serve/openai_protocol.py, 2026.
"""

from __future__ import annotations

import json
from typing import Any

from onepolicy.engines.contract import SampleInput
from onepolicy.engines.obeyed import for_request, one_token
from onepolicy.errors import UsageError
from onepolicy.integrations.trtllm.protocol import write_protocol
from onepolicy.records.protocol import Constraint, SamplingProtocol
from onepolicy.records.tokens import IntArray

BESIDE = {
    "stream": False,
    "echo": False,
    "use_beam_search": False,
    "include_stop_str_in_output": True,
    "add_special_tokens": False,
    "skip_special_tokens": False,
    "spaces_between_special_tokens": False,
    "detokenize": False,
}
"""fields that a protocol does not have, at the value that changes nothing. Ids come back only without detokenising, and
those that end a completion only where stop strings stay in the output"""
PYTHON_ONLY = ("logprobs_mode", "guided_decoding")
"""of SamplingParams, and no field of a request"""


def completion(item: SampleInput, protocol: SamplingProtocol, *, model: str) -> dict[str, Any]:
    """The body that samples one completion, with every field of the protocol. `logprobs` 0 would give none.

    Raises: UsageError if TensorRT-LLM cannot say something that changes what is drawn; EngineError without room.
    """
    written = write_protocol(for_request(item, protocol)).content
    assert isinstance(written, dict)
    said = {name: value for name, value in written["sampling_params"].items() if name not in PYTHON_ONLY}
    own = {"model": model, "prompt": item.prompt_ids.tolist(), "logprobs": 1}
    return said | constrained(protocol.constraint) | BESIDE | own


def constrained(constraint: Constraint | None) -> dict[str, Any]:
    """The field of a request that says what the text must match. Raises: UsageError for a schema that is no JSON."""
    if constraint is None:
        return {}
    if constraint.kind == "regex":
        return {"response_format": {"type": "regex", "regex": constraint.text}}
    if constraint.kind == "grammar":
        return {"response_format": {"type": "ebnf", "ebnf": constraint.text}}
    try:
        return {"response_format": {"type": "json", "schema": json.loads(constraint.text)}}
    except ValueError as error:
        raise UsageError(f"constraint: the text is no JSON ({error}). Correct the schema.") from error


def first_token(
    token_ids: IntArray, *, model: str, temperature: float, top_k: int = 0, top: int = 1, seed: int = 0
) -> dict[str, Any]:
    """The body that asks for the distribution of the first position after some ids."""
    item, protocol = one_token(token_ids, temperature=temperature, top_k=top_k, seed=seed)
    return completion(item, protocol, model=model) | {"logprobs": top}
