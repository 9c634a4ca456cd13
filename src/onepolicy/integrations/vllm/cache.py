"""Scoring from a cold or a warm prefix cache, with what the server says that it took from there.

Prompt logprobs never use the cache, so each token is asked for by itself, as what may come after the tokens before it.
A salt keeps the cached blocks of one request from another one that has a different salt: a cold request has one of its
own, the warm requests of a sequence share one that no other sequence has.
Source: vllm/v1/core/kv_cache_utils.py and vllm/sampling_params.py (cache_salt, logprob_token_ids), 0.32.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from onepolicy.engines.columns import TopList, same_ids
from onepolicy.engines.completions import cached_tokens, the_choice, top_list
from onepolicy.engines.contract import ScoreInput
from onepolicy.engines.legs import CACHED
from onepolicy.engines.stepping import stepped
from onepolicy.integrations.vllm.request import first_token
from onepolicy.records.reading import ReadingRow
from onepolicy.records.tokens import Float32, IntArray, TokenState

Ask = Callable[[dict[str, Any]], Awaitable[Mapping[str, Any]]]
"""a body for `/v1/completions` -> the answer"""


@dataclass(slots=True, kw_only=True, eq=False)
class CachedScoring:
    """Requests for one sequence."""

    item: ScoreInput
    ask: Ask
    model: str
    warm: bool
    counts: dict[int, int] = field(default_factory=dict)
    """position -> tokens that came from the cache, where the server says"""
    salt: str = field(default_factory=lambda: secrets.token_hex(8))

    async def row(self) -> ReadingRow:
        """The row, with the counts as a statistic: NaN where the server did not say. Raises: EngineError."""
        if self.warm:
            await self._answer(self.item.token_ids, (), self.salt)
        row = await stepped(self.item, self.list_after)
        return replace(row, statistics={CACHED: self._counted(row)})

    async def list_after(self, token_ids: IntArray, tokens: Sequence[int]) -> TopList:
        """The logprobs of `tokens` after some ids."""
        at = len(token_ids)
        answer = await self._answer(token_ids, tokens, self.salt if self.warm else f"{self.salt}-{at}")
        count = cached_tokens(answer)
        if count is not None:
            self.counts[at] = count
        choice = the_choice(answer, rollout_id=self.item.rollout_id, model=self.model)
        same_ids(self.item.rollout_id, sent=token_ids, answered=choice.get("prompt_token_ids"), of="prompt")
        listed = (choice.get("logprobs") or {}).get("top_logprobs") or [{}]
        return top_list(listed[0])

    async def _answer(self, token_ids: IntArray, tokens: Sequence[int], salt: str) -> Mapping[str, Any]:
        wanted = {"logprob_token_ids": list(tokens)} if tokens else {}
        return await self.ask(first_token(token_ids, model=self.model) | wanted | {"cache_salt": salt})

    def _counted(self, row: ReadingRow) -> Float32:
        found = np.full(len(row.states), np.nan, dtype=np.float32)
        for at, count in self.counts.items():
            if row.states[at] == TokenState.VALUE:
                found[at] = count
        return found
