"""Requests that leave the server no default to act on."""

from __future__ import annotations

from typing import Any

from onepolicy.engines.completions import sampling, sampling_one
from onepolicy.engines.contract import SampleInput, ScoreInput
from onepolicy.records.protocol import SamplingProtocol
from onepolicy.records.tokens import IntArray

NEUTRAL = {
    "n": 1,
    "stream": False,
    "echo": False,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "length_penalty": 1.0,
    "min_tokens": 0,
    "stop": [],
    "ignore_eos": False,
    "include_stop_str_in_output": True,
    "logit_bias": None,
    "add_special_tokens": False,
    "skip_special_tokens": False,
    "spaces_between_special_tokens": False,
    "return_token_ids": True,
    "return_tokens_as_token_ids": True,
}
"""fields of the server that a protocol does not have, at the value that changes nothing; the model's folder would
otherwise fill some of them"""


def completion(item: SampleInput, protocol: SamplingProtocol, *, model: str, top: int) -> dict[str, Any]:
    """The body for `/v1/completions` that samples one completion."""
    return NEUTRAL | {"model": model, **sampling(item, protocol), "logprobs": top}


def scoring(item: ScoreInput, *, model: str, top: int) -> dict[str, Any]:
    """The body for `/v1/completions` that scores a sequence: its prompt logprobs, and one token that nobody reads."""
    return scoring_body(item.token_ids, model=model, top=top)


def scoring_body(token_ids: IntArray, *, model: str, top: int) -> dict[str, Any]:
    """The same for some ids."""
    return first_token(token_ids, model=model) | {"prompt_logprobs": top, "logprobs": None}


def first_token(
    token_ids: IntArray, *, model: str, temperature: float = 1.0, top_k: int = 0, top: int = 0
) -> dict[str, Any]:
    """The body that asks for the distribution of the first position after some ids."""
    one = sampling_one(token_ids, temperature=temperature, top_k=top_k)
    return NEUTRAL | {"model": model, **one, "logprobs": top}
