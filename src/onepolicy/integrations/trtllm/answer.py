"""TensorRT-LLM's answers as completions. Minus infinity comes as -9999.0.

The lists of most likely tokens are keyed by text: two ids with one text hide each other, and the entry of the sampled
token cannot be told from the others, so no list is kept.
Source: tensorrt_llm/serve/postprocess_handlers.py (`create_completion_logprobs`), 2026.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from onepolicy.engines.completions import completed, ids_of, same_prompt, the_choice
from onepolicy.engines.contract import Completion, SampleInput
from onepolicy.records.tokens import IntArray

Json = Mapping[str, Any]


def completion_of(item: SampleInput, answer: Json, *, model: str, text_of: Callable[[IntArray], str]) -> Completion:
    """The completion that an answer describes. Raises: EngineError if it lacks what was asked for."""
    name = item.rollout_id
    choice = the_choice(answer, rollout_id=name, model=model)
    same_prompt(name, answer, choice, sent=item.prompt_ids)
    ids = ids_of(name, choice.get("token_ids"), advice="Use TensorRT-LLM 1.0 or later (detokenize: false).")
    return replace(completed(item, answer, choice, ids), text=text_of(ids))
