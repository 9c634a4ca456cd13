"""What a server lists for each token, as arrays: sentinels and nulls become states before any arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any, TypeVar

import numpy as np

from onepolicy.engines.contract import ScoreInput
from onepolicy.errors import EngineError
from onepolicy.records.reading import ReadingRow, TopLists
from onepolicy.records.tokens import (
    BoolArray,
    Float32,
    Float64,
    IntArray,
    StateArray,
    TokenState,
    digest_of_ids,
    states_of,
)

ValueT = TypeVar("ValueT")
Logprob = float | None
TopList = Mapping[int, Logprob]
"""token id -> logprob, or null"""
_NUMBERS = {float, int, type(None)}
"""types of JSON that may stand for a logprob; a bool is an int to isinstance"""
_INFINITY, _LOWEST = np.float32(np.inf), np.float32(-1000.0)
"""no logprob comes near the second; below it stands what a server writes for minus infinity"""
_NAN, _MASKED, _NO_TOKEN = np.float32(np.nan), np.uint8(TokenState.MASKED), np.int32(-1)


def column(rollout_id: str, given: Any, *, length: int) -> tuple[Float32, StateArray]:
    """Logprobs of `length` tokens and why each is one or not. Raises: EngineError if there are more or fewer.

    Null is ABSENT. A sentinel, an infinity, NaN and a positive number are INVALID.
    """
    if not isinstance(given, list) or len(given) != length:
        raise EngineError(
            f"rollout {rollout_id}: {len(given) if isinstance(given, list) else 0} logprobs came back for {length} "
            "tokens. Numbers that belong to no known token are not used; see whether this version of the server is "
            "supported."
        )
    numbers = as_float32(rollout_id, given)
    absent = np.isnan(numbers)
    for at in np.flatnonzero(absent).tolist():
        absent[at] = given[at] is None
    return column_of(numbers, absent=absent)


def column_of(given: Float32 | Float64, *, absent: BoolArray) -> tuple[Float32, StateArray]:
    """[T] numbers as they came, [T] where none came -> the same with NaN for what is no logprob, and why it is none."""
    numbers = _narrow(given)
    states = states_of(numbers)
    states[absent] = TokenState.ABSENT
    return np.where(states == TokenState.VALUE, numbers, _NAN), states


def as_float32(rollout_id: str, given: Sequence[Any]) -> Float32:
    """Numbers as they came, NaN for null; sentinels are still in it. Raises: EngineError for anything else."""
    if not set(map(type, given)) <= _NUMBERS:
        odd = next(value for value in given if type(value) not in _NUMBERS)
        raise EngineError(f"rollout {rollout_id}: {odd!r} stands where a logprob belongs.")
    return _narrow(np.asarray(given, dtype=np.float64))  # NaN for null


def _narrow(numbers: Float32 | Float64) -> Float32:
    """In float32, in which what is beyond it is an infinity."""
    with np.errstate(over="ignore"):
        return numbers.astype(np.float32, copy=False)


def known(logprobs: Float32, *, truncates: bool = False) -> Float32:
    """The same with NaN for what is no logprob.

    truncates: whether they are of a distribution in which tokens are cut. What a server writes for minus infinity is a
    number then: the token was cut.
    """
    numbers = np.where(states_of(logprobs) == TokenState.VALUE, logprobs, _NAN).astype(np.float32)
    return np.where(logprobs <= _LOWEST, -_INFINITY, numbers) if truncates else numbers


def scored_row(
    item: ScoreInput, given: Sequence[Logprob], *, top1: IntArray | None = None, top: TopLists | None = None
) -> ReadingRow:
    """The row of a scored sequence. given: [T] as the server lists it, null for the first token."""
    return row_of_column(item, *column(item.rollout_id, given, length=len(item.token_ids)), top1=top1, top=top)


def row_of_column(
    item: ScoreInput,
    logprobs: Float32,
    states: StateArray,
    *,
    top1: IntArray | None = None,
    top: TopLists | None = None,
) -> ReadingRow:
    """The same of [T] logprobs and [T] states."""
    return ReadingRow(
        rollout_id=item.rollout_id,
        digest=digest_of_ids(item.token_ids),
        logprobs=np.where(item.wanted, logprobs, _NAN),
        states=np.where(item.wanted, states, _MASKED),
        top1=None if top1 is None else np.where(item.wanted, top1, _NO_TOKEN),
        top=top,
    )


def top_lists(rollout_id: str, lists: Sequence[TopList], *, size: int, truncates: bool = False) -> TopLists:
    """The `size` most likely tokens of each list, the most likely first; equal ones by id. truncates: as of `known`."""
    lengths = np.fromiter(map(len, lists), dtype=np.int64, count=len(lists))
    tokens = np.fromiter(chain.from_iterable(lists), dtype=np.int32, count=int(lengths.sum()))
    given = as_float32(rollout_id, list(chain.from_iterable(one.values() for one in lists)))
    values = known(given, truncates=truncates)
    row = np.repeat(np.arange(len(lists)), lengths)
    order = np.lexsort((tokens, -values, row))  # NaN last in each row
    rank = np.arange(len(tokens)) - np.repeat(lengths.cumsum() - lengths, lengths)
    ids = np.full((len(lists), size), -1, dtype=np.int32)
    logprobs = np.full((len(lists), size), np.nan, dtype=np.float32)
    kept = rank < size
    ids[row[kept], rank[kept]] = tokens[order][kept]
    logprobs[row[kept], rank[kept]] = values[order][kept]
    return TopLists(positions=np.arange(len(lists), dtype=np.int32), ids=ids, logprobs=logprobs)


def top1_of(top: TopLists) -> IntArray:
    """[N] the most likely token of each list; -1 where there is none with a logprob."""
    return np.where(np.isfinite(top.logprobs[:, 0]), top.ids[:, 0], -1).astype(np.int32)


def reported(rollout_id: str, report: TopLists, list_at: Callable[[int], TopList]) -> TopLists:
    """Logprobs of the other side's tokens as far as they are in this side's list of that position; NaN for others."""
    logprobs = np.full(report.ids.shape, np.nan, dtype=np.float32)
    for row, (position, ids) in enumerate(zip(report.positions.tolist(), report.ids.tolist(), strict=True)):
        entries = list_at(position)
        logprobs[row] = as_float32(rollout_id, [entries.get(token) for token in ids])
    return TopLists(positions=report.positions, ids=report.ids, logprobs=known(logprobs))


def without_sampled(listed: Mapping[int, ValueT], own: int, *, size: int) -> dict[int, ValueT]:
    """A list of the `size` most likely tokens without the entry that a server adds for the sampled or given one.

    Cutting a sorted list instead would take that token in where it ties with the last one, as it often does in
    bfloat16, and the list would depend on what was sampled.
    """
    kept = dict(listed)
    if len(kept) > size:
        kept.pop(own, None)
    return kept


def same_ids(rollout_id: str, *, sent: IntArray, answered: Sequence[int] | None, of: str) -> None:
    """Raise EngineError unless the server says that it worked on the ids that were sent."""
    if answered is None:
        raise EngineError(
            f"rollout {rollout_id}: the server does not say which {of} ids it used, so its numbers may be of others. "
            "Use a version that returns them."
        )
    ids = sent.tolist()
    if answered != ids:
        first = next((i for i, (a, b) in enumerate(zip(answered, ids, strict=False)) if a != b), None)
        where = f"position {first}" if first is not None else f"{len(answered)} ids for {len(ids)}"
        raise EngineError(
            f"rollout {rollout_id}: the server worked on other {of} ids than were sent ({where}). Look for a BOS that "
            "it adds, or a limit that it cuts at."
        )
