"""vLLM's answers as completions and rows: ids checked, sentinels decoded, the entry of the sampled token set apart.

A list of the K most likely tokens has K + 1 entries where the sampled token is not among them; it is dropped, as a list
must not depend on what was sampled. Minus infinity and NaN come as -9999.0.
Source: vllm/entrypoints/openai/completion/serving.py and vllm/logprobs.py, 0.32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from onepolicy.engines.columns import TopList, reported, row_of_column, same_ids, scored_row, without_sampled
from onepolicy.engines.completions import completed, ids_of, the_choice
from onepolicy.engines.contract import Completion, SampleInput, ScoreInput, Wanted
from onepolicy.errors import EngineError
from onepolicy.integrations.vllm.columns import OwnTokens
from onepolicy.records.reading import ReadingRow
from onepolicy.records.tokens import IntArray

Json = Mapping[str, Any]


def completion_of(item: SampleInput, answer: Json, wanted: Wanted, *, model: str, weight_version: str) -> Completion:
    """The completion that an answer describes. Raises: EngineError if it lacks what was asked for."""
    name = item.rollout_id
    choice = the_choice(answer, rollout_id=name, model=model)
    same_ids(name, sent=item.prompt_ids, answered=choice.get("prompt_token_ids"), of="prompt")
    ids = ids_of(name, choice.get("token_ids"), advice="Use vLLM 0.10 or later (return_token_ids).")
    found = completed(item, answer, choice, ids, top=wanted.top, truncates=wanted.meaning.truncates)
    return replace(found, weight_version=weight_version)


def row_of(item: ScoreInput, answer: Json, *, model: str, top: int) -> ReadingRow:
    """The row that a scored prompt describes. top: how many of the most likely tokens were asked for."""
    name, ids = item.rollout_id, item.token_ids
    choice = the_choice(answer, rollout_id=name, model=model)
    same_ids(name, sent=ids, answered=choice.get("prompt_token_ids"), of="prompt")
    listed = choice.get("prompt_logprobs")
    if not isinstance(listed, list | OwnTokens) or len(listed) != len(ids):
        raise EngineError(
            f"rollout {name}: {len(listed) if isinstance(listed, list | OwnTokens) else 0} prompt logprobs came back "
            f"for {len(ids)} tokens. This server cannot score; use it as the rollout side."
        )
    if isinstance(listed, OwnTokens):
        return row_of_column(item, *listed.column(ids), top1=listed.top1)
    own = [(entries or {}).get(str(token)) for entries, token in zip(listed, ids.tolist(), strict=True)]
    return scored_row(
        item,
        [None if entry is None else entry.get("logprob") for entry in own],
        top1=_top1(listed),
        top=None
        if item.report is None
        else reported(name, item.report, lambda at: _list(listed[at] or {}, int(ids[at]), size=top)),
    )


def _top1(listed: Sequence[Json | None]) -> IntArray:
    """[T] the token of rank 1 at each position; -1 where it is not listed."""
    found = [-1] * len(listed)
    for at, entries in enumerate(listed):
        for token, entry in (entries or {}).items():
            if entry["rank"] == 1:
                found[at] = int(token)
                break
    return np.asarray(found, dtype=np.int32)


def _list(entries: Json, own: int, *, size: int) -> TopList:
    """The most likely tokens of a position, the scored one left out where it is not one of them."""
    found = {int(token): entry.get("logprob") for token, entry in entries.items()}
    return without_sampled(found, own, size=size)
