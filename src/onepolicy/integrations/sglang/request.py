"""Requests for `/generate` that leave the server no default to act on.

Its own defaults are those of the model's generation_config.json (`--sampling-defaults model`).
"""

from __future__ import annotations

from typing import Any

from onepolicy.engines.contract import SampleInput, ScoreInput
from onepolicy.records.protocol import SamplingProtocol
from onepolicy.records.tokens import IntArray

OFF = -1
"""top_k that keeps everything; 0 is refused"""
NEUTRAL = {
    "n": 1,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "min_new_tokens": 0,
    "stop": [],
    "stop_token_ids": [],
    "ignore_eos": False,
    "no_stop_trim": True,
    "skip_special_tokens": False,
    "spaces_between_special_tokens": False,
}
"""sampling parameters of the server that a protocol does not have, at the value that changes nothing"""
PLAIN = NEUTRAL | {"temperature": 1.0, "top_p": 1.0, "top_k": OFF, "min_p": 0.0, "sampling_seed": 0}
DELIVERY = {
    "stream": False,
    "return_logprob": True,
    "return_text_in_logprobs": False,
    "return_prompt_token_ids": True,
    "token_ids_logprob": None,
}


def completion(item: SampleInput, protocol: SamplingProtocol, *, top: int) -> dict[str, Any]:
    """The body that samples one completion."""
    sampling = NEUTRAL | {
        "max_new_tokens": protocol.max_new_tokens,
        "temperature": protocol.temperature,
        "top_p": protocol.top_p,
        "top_k": protocol.top_k or OFF,
        "min_p": protocol.min_p,
        "sampling_seed": item.seed,
    }
    return _body(item.prompt_ids, sampling, start=-1, top=top)


def scoring(item: ScoreInput, *, top: int) -> dict[str, Any]:
    """The body that scores a sequence and generates nothing. From position 0 on, so that no cache is used."""
    return _body(item.token_ids, PLAIN | {"max_new_tokens": 0}, start=0, top=top)


def first_token(token_ids: IntArray, *, temperature: float, top_k: int, top: int) -> dict[str, Any]:
    """The body that asks for the distribution of the first position after some ids."""
    sampling = PLAIN | {"max_new_tokens": 1, "temperature": temperature, "top_k": top_k or OFF}
    return _body(token_ids, sampling, start=-1, top=top)


def rendering(messages: list[dict[str, str]], *, model: str) -> dict[str, Any]:
    """The body for `/v1/chat/completions` whose answer says which ids the conversation is (SGLang 0.5.13 or later)."""
    return {
        "model": model,
        "messages": messages,
        "max_tokens": 1,
        "temperature": 0.0,
        "stream": False,
        "return_prompt_token_ids": True,
    }


def _body(token_ids: IntArray, sampling: dict[str, Any], *, start: int, top: int) -> dict[str, Any]:
    return DELIVERY | {
        "input_ids": token_ids.tolist(),
        "sampling_params": sampling,
        "logprob_start_len": start,
        "top_logprobs_num": top,
    }
