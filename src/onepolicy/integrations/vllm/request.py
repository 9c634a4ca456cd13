"""Requests that leave the server no default to act on."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from onepolicy.engines.contract import SampleInput, ScoreInput
from onepolicy.engines.obeyed import for_request, one_token
from onepolicy.integrations.vllm.protocol_writing import write_protocol
from onepolicy.records.protocol import SamplingProtocol
from onepolicy.records.tokens import IntArray

BESIDE = {
    "stream": False,
    "echo": False,
    "length_penalty": 1.0,
    "include_stop_str_in_output": True,
    "logit_bias": None,
    "add_special_tokens": False,
    "skip_special_tokens": False,
    "spaces_between_special_tokens": False,
    "return_token_ids": True,
    "return_tokens_as_token_ids": True,
}
"""fields of the server that a protocol does not have, at the value that changes nothing, and what is to come back: a
stop string belongs to the text as its tokens belong to the completion"""


def completion(item: SampleInput, protocol: SamplingProtocol, *, model: str, top: int) -> dict[str, Any]:
    """The body for `/v1/completions` that samples one completion.

    Every field of the protocol is sent: the model's folder would otherwise fill some of them.
    Raises: UsageError if vLLM cannot say something that changes what is drawn; EngineError without room for a token.
    """
    own = {"model": model, "prompt": item.prompt_ids, "logprobs": top}
    return {**_fields(for_request(item, protocol)), **BESIDE, **own}


@lru_cache(maxsize=64)
def _fields(protocol: SamplingProtocol) -> dict[str, Any]:
    """What a request says of a protocol; kept, as all scoring requests say the same."""
    written = write_protocol(protocol).content
    assert isinstance(written, dict)
    request: dict[str, Any] = written["request"]
    return request


def scoring(item: ScoreInput, *, model: str, top: int) -> dict[str, Any]:
    """The body for `/v1/completions` that scores a sequence: its prompt logprobs, and one token that nobody reads."""
    return scoring_body(item.token_ids, model=model, top=top)


def scoring_body(token_ids: IntArray, *, model: str, top: int) -> dict[str, Any]:
    """The same for some ids. Without a seed: on a CPU vLLM 0.32 ends where a prefill is split of a request with one."""
    return first_token(token_ids, model=model) | {"prompt_logprobs": top, "logprobs": None, "seed": None}


def first_token(
    token_ids: IntArray, *, model: str, temperature: float = 1.0, top_k: int = 0, top: int = 0
) -> dict[str, Any]:
    """The body that asks for the distribution of the first position after some ids."""
    return completion(*one_token(token_ids, temperature=temperature, top_k=top_k), model=model, top=top)
