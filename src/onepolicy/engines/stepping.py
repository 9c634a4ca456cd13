"""Scoring with a server that gives no logprobs of a prompt: one request for one token at each position.

Exact where the server lists the logprob of the token that is there; everywhere else the position is ABSENT. A sequence
of C scored tokens costs C requests, each with everything before its token as the prompt, so that without a prefix cache
the server computes about C / 2 times what one pass over the sequence takes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

import numpy as np

from onepolicy.engines.columns import TopList, reported, scored_row
from onepolicy.engines.contract import ScoreInput
from onepolicy.records.reading import ReadingRow
from onepolicy.records.tokens import IntArray

AT_ONCE = 16
"""requests of one sequence in flight; a long one must not hold the bodies of all its requests at once"""
ListAfter = Callable[[IntArray, Sequence[int]], Coroutine[Any, Any, TopList]]
"""ids, and tokens that may come next -> logprobs of what may come next, as far as the server lists them. The list must
not depend on what was sampled"""


async def stepped(item: ScoreInput, list_after: ListAfter, *, at_once: int = AT_ONCE) -> ReadingRow:
    """The row of a sequence. A first token has nothing before it and is not asked for.

    at_once: requests in flight; 1 where each goes on from what the last one left in a cache.
    """
    positions = [at for at in np.flatnonzero(item.wanted).tolist() if at > 0]
    lists: dict[int, TopList] = {}
    for first in range(0, len(positions), at_once):
        part = positions[first : first + at_once]
        answers = (list_after(item.token_ids[:at], _tokens(item, at)) for at in part)
        lists.update(zip(part, await _all_of(answers), strict=True))
    given = [lists.get(at, {}).get(token) for at, token in enumerate(item.token_ids.tolist())]
    top = None if item.report is None else reported(item.rollout_id, item.report, lambda at: lists.get(at, {}))
    return scored_row(item, given, top=top)


async def _all_of(answers: Iterable[Coroutine[Any, Any, TopList]]) -> list[TopList]:
    """What each returns. If one fails the others are given up, and have ended before its error is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(answer) for answer in answers]
    except ExceptionGroup as failed:
        first = failed.exceptions[0]
    else:
        return [task.result() for task in tasks]
    raise first


def _tokens(item: ScoreInput, at: int) -> list[int]:
    """The token that is there, and those of the other side's list."""
    own = int(item.token_ids[at])
    if item.report is None:
        return [own]
    others: list[int] = item.report.ids[item.report.positions == at].ravel().tolist()
    return [own, *(token for token in others if token >= 0 and token != own)]
