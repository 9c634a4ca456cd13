"""Rows by our names -> blocks: masks by default, columns over the full sequence, digests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from onepolicy.dumps.block import NO_STEP, RecordedBlock
from onepolicy.integrations.columns.lists import Counts, Lists
from onepolicy.integrations.columns.rows import LOGPROBS, SCALARS, NumberedRefusal, Rows, in_completion, joined, refused
from onepolicy.integrations.columns.tags import NONE
from onepolicy.records.blocks import ReadingBlock, RolloutBlock
from onepolicy.records.tokens import BoolArray, Float64, IntArray, TokenState, digest_of_ids, states_of

NO_ID = -1
"""stands for a token of a file that holds no ids"""


def block_of(rows: Rows, *, label: str, besides: Sequence[NumberedRefusal] = ()) -> RecordedBlock:
    """The rows that do not contradict themselves as a block; the others as its refusals, in the order of the file.

    besides: what was refused already, before it was one of these rows.
    """
    rows, found = refused(rows)
    refusals = tuple(refusal for _, refusal in sorted((*found, *besides), key=lambda one: one[0]))
    shape = _Shape.of(rows)
    sampled, loss_mask = _masks(rows, shape)
    first, any_sampled = _first(sampled, shape)
    compared = np.where(np.repeat(any_sampled, shape.tokens), sampled, loss_mask)
    token_ids = _token_ids(rows, shape)
    ids = [told or f"{label}/{number}" for told, number in zip(_texts(rows, "rollout_id"), rows.numbers, strict=True)]
    digests = [digest_of_ids(own) for own in _split(token_ids, shape.offsets)]

    def side(name: str) -> ReadingBlock | None:
        if name not in rows.lists:
            return None
        logprobs, states = _column(rows.lists[name], shape, compared)
        return ReadingBlock(
            rollout_ids=ids,
            digests=digests,
            offsets=shape.offsets,
            logprobs=logprobs,
            states=states,
            checked=True,
            top1=None,
        )

    steps = [NO_STEP if step is None else step for step in _read(rows, "step", None)]
    return RecordedBlock(
        rollouts=RolloutBlock(
            rollout_ids=ids,
            prompt_ids=_prompt_names(rows, shape, token_ids, first) if rows.layout != "none" else _own(rows, ids),
            tags=_read(rows, "tags", NONE),
            offsets=shape.offsets,
            token_ids=token_ids,
            sampled=sampled,
            loss_mask=loss_mask,
        ),
        rollout=side(LOGPROBS[0]),
        trainer=side(LOGPROBS[1]),
        steps=np.array(steps, dtype=np.int64),
        weight_versions=_texts(rows, "weight_version"),
        trainer_versions=_texts(rows, "trainer_version"),
        rewards=_numbers(rows, "reward"),
        advantages=_numbers(rows, "advantage"),
        refused=refusals,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Shape:
    """How long R rows are, and which of the N tokens belong to completions."""

    tokens: Counts
    completion: Counts
    offsets: Counts
    inside: BoolArray | None
    """None if no row has a prompt of its own"""

    @classmethod
    def of(cls, rows: Rows) -> _Shape:
        completion = rows.completion
        tokens = rows.prompt + completion
        return cls(
            tokens=tokens,
            completion=completion,
            offsets=np.concatenate([[0], np.cumsum(tokens)]).astype(np.int64),
            inside=in_completion(rows) if rows.layout == "parts" else None,
        )


def _spread(values: npt.NDArray[Any], lengths: Counts, shape: _Shape, *, fill: Any) -> npt.NDArray[Any]:
    """Values of whole sequences or of completions, by the lengths of the lists, over all N tokens."""
    whole = lengths == shape.tokens
    if whole.all():
        return values
    covered = np.repeat(whole, shape.tokens)
    part = np.repeat(~whole & (lengths == shape.completion), shape.tokens)
    covered |= part if shape.inside is None else part & shape.inside
    out = np.full(int(shape.offsets[-1]), fill, dtype=values.dtype)
    out[covered] = values
    return out


def _masks(rows: Rows, shape: _Shape) -> tuple[BoolArray, BoolArray]:
    """(sampled, loss_mask) [N]; where the file has none: the completion, and what was sampled."""
    given = {
        name: _spread(rows.lists[name].values.astype(np.bool_), rows.lists[name].lengths, shape, fill=False)
        for name in ("sampled", "loss_mask")
        if name in rows.lists
    }
    if "sampled" in given:
        sampled = given["sampled"]
    elif shape.inside is not None:
        sampled = shape.inside
    else:
        sampled = given.get("loss_mask", np.ones(int(shape.offsets[-1]), dtype=np.bool_))
    return sampled, given.get("loss_mask", sampled)


def _first(sampled: BoolArray, shape: _Shape) -> tuple[Counts, BoolArray]:
    """[R] the place of the first sampled token in the row, its length if there is none; [R] whether there is one."""
    places = np.flatnonzero(sampled)
    start = np.searchsorted(places, shape.offsets[:-1])
    there = start < np.searchsorted(places, shape.offsets[1:])
    first = shape.tokens.copy()
    first[there] = places[start[there]] - shape.offsets[:-1][there]
    return first, there


def _column(lists: Lists, shape: _Shape, compared: BoolArray) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.uint8]]:
    """(logprobs, states) [N]: ABSENT for null, and where a row has null in place of the list."""
    with np.errstate(over="ignore"):
        values = lists.values.astype(np.float32, copy=False)
    logprobs = _spread(values, lists.lengths, shape, fill=np.nan)
    states = states_of(logprobs)
    if lists.nulls is not None:
        states[_spread(lists.nulls, lists.lengths, shape, fill=False)] = TokenState.ABSENT
    if lists.missing is not None:
        states[np.repeat(lists.missing, shape.tokens)] = TokenState.ABSENT
    states = np.where(compared, states, np.uint8(TokenState.MASKED))
    return np.where(states == TokenState.VALUE, logprobs, np.float32(np.nan)), states


def _token_ids(rows: Rows, shape: _Shape) -> IntArray:
    if rows.layout == "none":
        return np.full(int(shape.offsets[-1]), NO_ID, dtype=np.int32)
    ids: IntArray = joined(rows) if rows.layout == "parts" else rows.lists["token_ids"].values
    return np.ascontiguousarray(ids, dtype=np.int32)


def _prompt_names(rows: Rows, shape: _Shape, token_ids: IntArray, first: Counts) -> list[str]:
    told = _texts(rows, "prompt_id")
    ends = rows.prompt if rows.layout == "parts" else first
    names = zip(told, shape.offsets[:-1].tolist(), ends.tolist(), strict=True)
    return [name or digest_of_ids(token_ids[start : start + end]) for name, start, end in names]


def _own(rows: Rows, ids: Sequence[str]) -> list[str]:
    """Without ids, rollouts of one prompt are not known from each other."""
    return [told or name for told, name in zip(_texts(rows, "prompt_id"), ids, strict=True)]


def _split(values: IntArray, offsets: Counts) -> list[IntArray]:
    edges = offsets.tolist()
    return [values[start:end] for start, end in pairwise(edges)]


def _read(rows: Rows, name: str, otherwise: Any) -> list[Any]:
    given = rows.scalars.get(name)
    return [otherwise] * len(rows) if given is None else [SCALARS[name](name, value) for value in given]


def _texts(rows: Rows, name: str) -> list[str]:
    return _read(rows, name, "")


def _numbers(rows: Rows, name: str) -> Float64:
    return np.array([np.nan if value is None else value for value in _read(rows, name, None)], dtype=np.float64)
