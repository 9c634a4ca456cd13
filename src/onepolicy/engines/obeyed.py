"""What of a protocol one request for one completion says, whatever the engine."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from onepolicy.engines.contract import SampleInput
from onepolicy.errors import EngineError
from onepolicy.records.protocol import COMMON_FIELDS, SamplingProtocol
from onepolicy.records.tokens import IntArray

_NO_IDS: IntArray = np.empty(0, dtype=np.int32)
ALWAYS = frozenset(
    (*COMMON_FIELDS, "max_total_tokens", "max_prompt_tokens", "prompt_truncation", "logprobs", "dtype", "schedule")
)
"""fields that every engine obeys: its own common ones, the total length by `for_request`, and what the workflow sees to
itself, which cuts prompts and refuses a dtype, a meaning or a schedule that the engine does not have"""


def for_request(item: SampleInput, protocol: SamplingProtocol) -> SamplingProtocol:
    """What a request for one completion has to say: its seed, no more tokens than there is room for.

    What the workflow sees to is at its default. Raises: EngineError if the prompt leaves no room.
    """
    return protocol.model_copy(
        update={
            "samples_per_prompt": 1,
            "seed": item.seed,
            "seed_policy": "each request",
            "max_new_tokens": room_for(item, protocol),
            "max_total_tokens": None,
            "max_prompt_tokens": None,
            "prompt_truncation": None,
            "logprobs": "raw",
            "dtype": None,
            "schedule": None,
        }
    )


def room_for(item: SampleInput, protocol: SamplingProtocol) -> int:
    """The longest completion of a prompt, in tokens. Raises: EngineError if the prompt leaves too little."""
    if protocol.max_total_tokens is None:
        return protocol.max_new_tokens
    left = protocol.max_total_tokens - len(item.prompt_ids)
    least = max(protocol.min_new_tokens, 1)
    if left < least:
        raise EngineError(
            f"rollout {item.rollout_id}: its prompt has {len(item.prompt_ids)} tokens and max_total_tokens = "
            f"{protocol.max_total_tokens} leaves {max(left, 0)} for a completion of at least {least}. Raise it, or cut "
            "prompts (max_prompt_tokens and prompt_truncation)."
        )
    return min(left, protocol.max_new_tokens)


def as_request(protocol: SamplingProtocol) -> SamplingProtocol:
    """The same before a prompt is there: what is refused of it is refused of every request."""
    nothing = SampleInput(rollout_id="any", prompt_ids=_NO_IDS, seed=0)
    return for_request(nothing, protocol)


def one_token(
    token_ids: IntArray, *, temperature: float = 1.0, top_k: int = 0, seed: int = 0
) -> tuple[SampleInput, SamplingProtocol]:
    """What to ask for one token after some ids, from the whole vocabulary unless `top_k` cuts it."""
    item = SampleInput(rollout_id="one token", prompt_ids=token_ids, seed=seed)
    return item, _of_one_token(temperature, top_k)


@lru_cache(maxsize=64)
def _of_one_token(temperature: float, top_k: int) -> SamplingProtocol:
    return SamplingProtocol(max_new_tokens=1, temperature=temperature, top_k=top_k)
