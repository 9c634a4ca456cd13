"""Completion requests that leave the server no default to act on, and the check that it did not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from onepolicy.engines.contract import SampleInput, Wanted
from onepolicy.errors import EngineError
from onepolicy.records.protocol import SamplingProtocol

NEUTRAL = {
    "dynatemp_range": 0.0,
    "top_n_sigma": -1.0,
    "xtc_probability": 0.0,
    "typical_p": 1.0,
    "repeat_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "dry_multiplier": 0.0,
    "mirostat": 0,
    "adaptive_target": -1.0,
    "min_keep": 0,
    "n_keep": 0,
    "ignore_eos": False,
    "logit_bias": [],
    "grammar": "",
    "stop": [],
    "post_sampling_probs": False,
}
"""fields of the server that a protocol does not have, at the value that changes nothing"""

SAMPLERS = ["temperature", "top_k", "top_p", "min_p"]
"""in the order in which Transformers applies them"""
FORCED = 1e4
"""added to a token's logit so that it is drawn; reported logprobs are of the logits before it"""


def settings_of(item: SampleInput, protocol: SamplingProtocol, wanted: Wanted) -> dict[str, Any]:
    """Every sampling field of the server, as it will report it back in `generation_settings`."""
    return NEUTRAL | {
        "samplers": SAMPLERS,
        "temperature": protocol.temperature,
        "top_k": protocol.top_k,
        "top_p": protocol.top_p,
        "min_p": protocol.min_p,
        "seed": item.seed,
        "n_predict": protocol.max_new_tokens,
        "n_probs": max(wanted.top, 1),
    }


def one_token(*, temperature: float = 0.0, top_k: int = 0, top: int = 1, seed: int = 0) -> dict[str, Any]:
    """The settings that ask for the most likely tokens of one position."""
    return NEUTRAL | {
        "samplers": SAMPLERS,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": 1.0,
        "min_p": 0.0,
        "seed": seed,
        "n_predict": 1,
        "n_probs": top,
    }


def forcing(token: int) -> dict[str, Any]:
    """The setting under which this token is drawn."""
    return {"logit_bias": [[token, FORCED]]}


def request_of(
    prompt_ids: Sequence[int], settings: Mapping[str, Any], *, slot: int = -1, cached: bool = False
) -> dict[str, Any]:
    """The body for `/completion`.

    slot: of the server, to go on in; -1 is any. cached: whether what the slot has computed of the prompt may be used.
    """
    delivery = {"cache_prompt": cached, "id_slot": slot, "return_tokens": True, "stream": False}
    return {"prompt": list(prompt_ids), **settings, **delivery}


def refuse_other_settings(*, sent: Mapping[str, Any], used: Mapping[str, Any]) -> None:
    """Raise EngineError unless the server used what was sent."""
    for name, value in sent.items():
        if name not in used:
            raise EngineError(
                f"the llama.cpp server does not say which {name} it used. Use a version of 2026 or later "
                "(in this process: xllamacpp>=2026.1)."
            )
        if not _same(_as_reported(name, value), used[name]):
            raise EngineError(
                f"the llama.cpp server sampled with {name}={used[name]!r}; {name}={value!r} was sent. Change the "
                "protocol to a value that the server takes."
            )


def _as_reported(name: str, sent: Any) -> Any:
    return [{"bias": bias, "token": token} for token, bias in sent] if name == "logit_bias" else sent


def _same(sent: Any, used: Any) -> bool:
    """Equal, numbers as float32: the server keeps them so."""
    if isinstance(sent, float) and isinstance(used, int | float):
        return bool(np.float32(sent) == np.float32(used))
    return bool(sent == used)
