"""Requests with the fields that TensorRT-LLM knows and no other: it refuses a body with any field more.

Source: `CompletionRequest` in tensorrt_llm/serve/openai_protocol.py, 2026.
"""

from __future__ import annotations

from typing import Any

from onepolicy.engines.completions import sampling, sampling_one
from onepolicy.engines.contract import SampleInput
from onepolicy.records.protocol import SamplingProtocol
from onepolicy.records.tokens import IntArray

NEUTRAL = {
    "n": 1,
    "stream": False,
    "echo": False,
    "use_beam_search": False,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "min_tokens": 0,
    "stop": [],
    "stop_token_ids": [],
    "ignore_eos": False,
    "include_stop_str_in_output": False,
    "add_special_tokens": False,
    "skip_special_tokens": False,
    "spaces_between_special_tokens": False,
    "detokenize": False,
}
"""fields that a protocol does not have, at the value that changes nothing. Ids come back only without detokenising"""


def completion(item: SampleInput, protocol: SamplingProtocol, *, model: str) -> dict[str, Any]:
    """The body that samples one completion. `logprobs` 0 would give none."""
    return NEUTRAL | {"model": model, **sampling(item, protocol), "logprobs": 1}


def first_token(
    token_ids: IntArray, *, model: str, temperature: float, top_k: int = 0, top: int = 1, seed: int = 0
) -> dict[str, Any]:
    """The body that asks for the distribution of the first position after some ids."""
    one = sampling_one(token_ids, temperature=temperature, top_k=top_k, seed=seed)
    return NEUTRAL | {"model": model, **one, "logprobs": top}
