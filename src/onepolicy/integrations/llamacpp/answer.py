"""A server's answer as a completion: sentinels decoded, logprobs paired with their tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from onepolicy.engines.contract import Completion, SampleInput, Wanted
from onepolicy.errors import EngineError
from onepolicy.integrations.llamacpp.align import paired_positions
from onepolicy.records.reading import TopLists
from onepolicy.records.tokens import Float32, IntArray, TokenState, states_of

FINISH_REASONS = {"eos": "stop", "limit": "length", "word": "stop"}
"""`stop_type` of the server -> finish_reason"""

Entry = Mapping[str, Any]


def completion_of(
    item: SampleInput, answer: Mapping[str, Any], wanted: Wanted, *, bytes_of: Callable[[int], bytes | None]
) -> Completion:
    """The completion that a server's answer describes.

    A token without an entry is ABSENT. If the entries cannot be paired with the tokens, all are ABSENT.
    Raises: EngineError if the answer lacks what was asked for.
    """
    ids: list[int] = _field(item, answer, "tokens")
    stop_type: str = _field(item, answer, "stop_type")
    entries: list[Entry] = answer.get("completion_probabilities", [])
    positions = paired_positions(ids, [entry["id"] for entry in entries], bytes_of=bytes_of)
    entries, positions = ([], []) if positions is None else (entries, positions)
    given = _given(entries)
    logprobs, states = np.full(len(ids), np.nan, np.float32), np.full(len(ids), TokenState.ABSENT, np.uint8)
    at = np.asarray(positions, dtype=np.int32)
    states[at] = _states(entries, given)
    logprobs[at] = np.where(states[at] == TokenState.VALUE, given, np.nan)
    finish = FINISH_REASONS.get(stop_type, stop_type)
    return Completion(
        rollout_id=item.rollout_id,
        token_ids=np.asarray(ids, dtype=np.int32),
        logprobs=logprobs,
        states=states,
        text=_field(item, answer, "content"),
        finish_reason=finish,
        stop_reason=str(ids[-1]) if stop_type == "eos" and ids else "",
        cached_tokens=answer.get("timings", {}).get("cache_n"),
        top1=_top1(entries, at, length=len(ids)),
        top=_top(entries, at, wanted.top) if wanted.top and item.keep_top else None,
    )


def _field(item: SampleInput, answer: Mapping[str, Any], name: str) -> Any:
    if name not in answer:
        raise EngineError(
            f"rollout {item.rollout_id}: the llama.cpp server's answer has no {name!r}; it has "
            f"{', '.join(sorted(answer))}. This version of xllamacpp is not supported; install xllamacpp>=2026.1."
        )
    return answer[name]


def _given(entries: Sequence[Entry]) -> Float32:
    """Logprobs as the server gave them, NaN for null; sentinels are still in it."""
    given = [entry.get("logprob") for entry in entries]
    return np.asarray([np.nan if value is None else value for value in given], dtype=np.float32)


def _states(entries: Sequence[Entry], given: Float32) -> Any:
    missing = [entry.get("logprob") is None for entry in entries]
    return np.where(missing, TokenState.ABSENT, states_of(given))


def _listed(entry: Entry) -> Sequence[Entry]:
    listed: Sequence[Entry] = entry.get("top_logprobs") or []
    return listed


def _top1(entries: Sequence[Entry], at: IntArray, *, length: int) -> IntArray:
    top1 = np.full(length, -1, dtype=np.int32)
    for position, entry in zip(at, entries, strict=True):
        if listed := _listed(entry):
            top1[position] = listed[0]["id"]
    return top1


def _top(entries: Sequence[Entry], at: IntArray, size: int) -> TopLists:
    """The server's lists as they are: exactly the `size` most likely tokens, the sampled one not added.

    Only at positions that have an entry; the server knows nothing of the others.
    """
    size = min((len(_listed(entry)) for entry in entries), default=size) if size else 0
    ids = np.full((len(at), size), -1, dtype=np.int32)
    logprobs = np.full((len(at), size), np.nan, dtype=np.float32)
    for n, entry in enumerate(entries):
        listed = _listed(entry)[:size]
        ids[n, : len(listed)] = [item["id"] for item in listed]
        given = _given(listed)
        logprobs[n, : len(listed)] = np.where(states_of(given) == TokenState.VALUE, given, np.nan)
    return TopLists(positions=at, ids=ids, logprobs=logprobs)
