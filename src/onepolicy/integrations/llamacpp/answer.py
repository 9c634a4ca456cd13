"""A server's answer as a completion: sentinels decoded, logprobs paired with their tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from onepolicy.engines.columns import TopList, as_float32, known
from onepolicy.engines.contract import Completion, SampleInput, Wanted
from onepolicy.errors import EngineError
from onepolicy.records.reading import TopLists
from onepolicy.records.tokens import IntArray, StateArray, TokenState, states_of

FINISH_REASONS = {"eos": "stop", "limit": "length", "word": "stop"}
"""`stop_type` of the server -> finish_reason"""
Entry = Mapping[str, Any]
"""what the server says of one token: id, logprob, bytes, top_logprobs"""


def entries_of(answer: Mapping[str, Any]) -> list[Entry]:
    """The entries of an answer, which are fewer than its tokens where some end inside a character."""
    return list(answer.get("completion_probabilities") or [])


def listed(entry: Entry) -> list[Entry]:
    """The most likely tokens at an entry's position, the most likely first."""
    return list(entry.get("top_logprobs") or [])


def top_list(entry: Entry) -> TopList:
    """The same as id -> logprob."""
    return {int(one["id"]): one.get("logprob") for one in listed(entry)}


def bytes_of(entry: Entry) -> dict[int, bytes]:
    """What each listed token adds to the server's text; in a list of the whole vocabulary, of every token."""
    return {int(one["id"]): bytes(one["bytes"]) for one in listed(entry)}


def field(answer: Mapping[str, Any], name: str) -> Any:
    """What an answer must have. Raises: EngineError."""
    if name not in answer:
        raise EngineError(
            f"the llama.cpp server's answer has no {name!r}; it has {', '.join(sorted(answer))}. Use a version of 2026 "
            "or later (in this process: xllamacpp>=2026.1)."
        )
    return answer[name]


def completion_of(
    item: SampleInput, answer: Mapping[str, Any], wanted: Wanted, *, entries: Mapping[int, Entry]
) -> Completion:
    """The completion that a server's answer describes.

    entries: position -> the entry of its token. A token without one is ABSENT.
    Raises: EngineError if the answer lacks what was asked for.
    """
    ids: list[int] = field(answer, "tokens")
    stop_type: str = field(answer, "stop_type")
    given = as_float32(item.rollout_id, [entries.get(at, {}).get("logprob") for at in range(len(ids))])
    finish = FINISH_REASONS.get(stop_type, stop_type)
    return Completion(
        rollout_id=item.rollout_id,
        token_ids=np.asarray(ids, dtype=np.int32),
        logprobs=known(given),
        states=_states(entries, ids, states_of(given)),
        text=field(answer, "content"),
        finish_reason=finish,
        stop_reason=_stop_reason(answer, stop_type, ids),
        cached_tokens=answer.get("timings", {}).get("cache_n"),
        top1=_top1(entries, length=len(ids)),
        top=_top(item.rollout_id, entries, wanted.top) if wanted.top and item.keep_top else None,
    )


def ended_by_text(answer: Mapping[str, Any]) -> bool:
    """Whether a stop string ended the completion; the server leaves it out of the text and not out of the tokens."""
    return answer.get("stop_type") == "word"


def _stop_reason(answer: Mapping[str, Any], stop_type: str, ids: Sequence[int]) -> str:
    if stop_type == "word":
        return str(answer.get("stopping_word") or "")
    return str(ids[-1]) if stop_type == "eos" and ids else ""


def _states(entries: Mapping[int, Entry], ids: Sequence[int], states: StateArray) -> StateArray:
    absent = [entries.get(at, {}).get("logprob") is None for at in range(len(ids))]
    return np.where(np.asarray(absent, dtype=np.bool_), TokenState.ABSENT, states).astype(np.uint8)


def _top1(entries: Mapping[int, Entry], *, length: int) -> IntArray:
    top1 = np.full(length, -1, dtype=np.int32)
    for position, entry in entries.items():
        if most_likely := listed(entry):
            top1[position] = most_likely[0]["id"]
    return top1


def _top(rollout_id: str, entries: Mapping[int, Entry], size: int) -> TopLists:
    """The server's lists as they are: exactly the `size` most likely tokens, the sampled one not added.

    Only at positions that have an entry; the server knows nothing of the others.
    """
    at = sorted(entries)
    size = min((len(listed(entries[position])) for position in at), default=size)
    ids = np.full((len(at), size), -1, dtype=np.int32)
    logprobs = np.full((len(at), size), np.nan, dtype=np.float32)
    for row, position in enumerate(at):
        kept = listed(entries[position])[:size]
        ids[row] = [one["id"] for one in kept]
        logprobs[row] = known(as_float32(rollout_id, [one.get("logprob") for one in kept]))
    return TopLists(positions=np.asarray(at, dtype=np.int32), ids=ids, logprobs=logprobs)
