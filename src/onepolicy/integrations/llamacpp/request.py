"""A completion request that leaves the server no default to act on, and the check that it did not."""

from __future__ import annotations

from collections.abc import Mapping
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


def request_of(item: SampleInput, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The body for `/completion`."""
    delivery = {"cache_prompt": False, "return_tokens": True, "stream": False}
    return {"prompt": item.prompt_ids.tolist(), **settings, **delivery}


def refuse_other_settings(item: SampleInput, *, sent: Mapping[str, Any], used: Mapping[str, Any]) -> None:
    """Raise EngineError unless the server used what was sent."""
    for name, value in sent.items():
        if name not in used:
            raise EngineError(
                f"rollout {item.rollout_id}: the llama.cpp server does not say which {name} it used. "
                "This version of xllamacpp is not supported; install xllamacpp>=2026.1."
            )
        if not _same(value, used[name]):
            raise EngineError(
                f"rollout {item.rollout_id}: the llama.cpp server sampled with {name}={used[name]!r}; "
                f"{name}={value!r} was sent. Change the protocol to a value that the server takes."
            )


def _same(sent: Any, used: Any) -> bool:
    """Equal, numbers as float32: the server keeps them so."""
    if isinstance(sent, float) and isinstance(used, int | float):
        return bool(np.float32(sent) == np.float32(used))
    return bool(sent == used)
