"""Scoring from a cold or a warm cache, with what the server says that it took from there (`timings.cache_n`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from onepolicy.engines.contract import ScoreInput
from onepolicy.engines.legs import CACHED
from onepolicy.engines.stepping import stepped
from onepolicy.integrations.llamacpp.stepping import Ask, Slot
from onepolicy.records.reading import ReadingRow
from onepolicy.records.tokens import TokenState


async def counted_row(item: ScoreInput, slot: Slot, *, cold: bool) -> ReadingRow:
    """The row of a stepped sequence; its statistic says how many tokens before each one came from the slot's cache.

    cold: all before each token is computed anew, which makes each a prefill reading. NaN where the server did not say.
    Raises: EngineError.
    """
    counts: dict[int, float] = {}

    def counting(ask: Ask) -> Ask:
        async def asked(body: dict[str, Any]) -> Mapping[str, Any]:
            answer = await ask({**body, "cache_prompt": False} if cold else body)
            counts[len(body["prompt"])] = (answer.get("timings") or {}).get("cache_n", np.nan)
            return answer

        return asked

    row = await stepped(item, slot.through(counting).list_after, at_once=1)
    valued = [counts.get(at, np.nan) if state == TokenState.VALUE else np.nan for at, state in enumerate(row.states)]
    return replace(row, statistics={CACHED: np.asarray(valued, dtype=np.float32)})
