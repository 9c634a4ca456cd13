"""Requests for `/generate` that leave the server no default to act on.

Its own defaults are those of the model's generation_config.json (`--sampling-defaults model`).
"""

from __future__ import annotations

from typing import Any

from onepolicy.engines.contract import SampleInput, ScoreInput
from onepolicy.engines.obeyed import for_request, one_token
from onepolicy.integrations.sglang.protocol import write_protocol
from onepolicy.records.protocol import SamplingProtocol
from onepolicy.records.tokens import IntArray

BESIDE = {
    "no_stop_trim": True,
    "skip_special_tokens": False,
    "spaces_between_special_tokens": False,
}
"""sampling parameters that say what is to come back: a stop string belongs to the text as its tokens belong to the
completion"""
DELIVERY = {
    "stream": False,
    "return_logprob": True,
    "return_text_in_logprobs": False,
    "return_prompt_token_ids": True,
    "token_ids_logprob": None,
}


def completion(item: SampleInput, protocol: SamplingProtocol, *, top: int) -> dict[str, Any]:
    """The body that samples one completion, with every field of the protocol.

    Raises: UsageError if SGLang cannot say something that changes what is drawn; EngineError without room for a token.
    """
    return _body(item.prompt_ids, _sampling(item, protocol), start=-1, top=top)


def scoring(item: ScoreInput, *, top: int) -> dict[str, Any]:
    """The body that scores a sequence and generates nothing. From position 0 on, so that no cache is used."""
    sampling = _sampling(*one_token(item.token_ids)) | {"max_new_tokens": 0}
    return _body(item.token_ids, sampling, start=0, top=top)


def first_token(token_ids: IntArray, *, temperature: float, top_k: int, top: int) -> dict[str, Any]:
    """The body that asks for the distribution of the first position after some ids."""
    return completion(*one_token(token_ids, temperature=temperature, top_k=top_k), top=top)


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


def _sampling(item: SampleInput, protocol: SamplingProtocol) -> dict[str, Any]:
    written = write_protocol(for_request(item, protocol)).content
    assert isinstance(written, dict)
    return {**written["request"]["sampling_params"], **BESIDE}


def _body(token_ids: IntArray, sampling: dict[str, Any], *, start: int, top: int) -> dict[str, Any]:
    return DELIVERY | {
        "input_ids": token_ids.tolist(),
        "sampling_params": sampling,
        "logprob_start_len": start,
        "top_logprobs_num": top,
    }
