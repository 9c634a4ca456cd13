"""Many rows by our names as they came, and what in them contradicts itself: found for all rows at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from onepolicy.dumps.contract import Refusal
from onepolicy.dumps.fields import LARGEST_ID, FieldError, misfit, number, text, whole
from onepolicy.integrations.columns.lists import Counts, Lists
from onepolicy.integrations.columns.tags import tags_text
from onepolicy.records.tokens import BoolArray

Layout = Literal["full", "parts", "none"]
"""token_ids; prompt_ids and completion_ids; no ids"""
IDS = ("token_ids", "prompt_ids", "completion_ids")
MASKS = ("sampled", "loss_mask")
LOGPROBS = ("rollout_logprobs", "trainer_logprobs")
LISTS = (*IDS, *MASKS, *LOGPROBS)
SCALARS: Mapping[str, Callable[[str, Any], Any]] = {
    "rollout_id": text,
    "prompt_id": text,
    "step": whole,
    "weight_version": text,
    "trainer_version": text,
    "reward": number,
    "advantage": number,
    "tags": tags_text,
}
NAMES = (*LISTS, *SCALARS)
NumberedRefusal = tuple[int, Refusal]
"""and the row of the file, from 0 on"""
Found = Iterator[tuple[int, str, str]]
"""row, field, why it is refused"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """R rows of one file; all of them have the same columns."""

    file: str
    """as messages name it"""
    numbers: Counts
    """[R] of the rows in the file, from 0 on"""
    wheres: Sequence[str] | None
    """[R] file and line, if the file has lines"""
    layout: Layout
    lists: Mapping[str, Lists]
    scalars: Mapping[str, Sequence[Any]]

    def __len__(self) -> int:
        return len(self.numbers)

    def where(self, row: int) -> str:
        """File and row, as a message names them."""
        return self.wheres[row] if self.wheres is not None else f"{self.file}, row {self.numbers[row]}"

    def kept(self, rows: BoolArray) -> Rows:
        """The rows that are True. Shape: [R]."""
        at = np.flatnonzero(rows).tolist()
        return replace(
            self,
            numbers=self.numbers[rows],
            wheres=None if self.wheres is None else [self.wheres[i] for i in at],
            lists={name: lists.kept(rows) for name, lists in self.lists.items()},
            scalars={name: [values[i] for i in at] for name, values in self.scalars.items()},
        )

    @property
    def prompt(self) -> Counts:
        """[R] tokens of the prompt, 0 where the file does not part it from the completion."""
        return self.lists["prompt_ids"].lengths if self.layout == "parts" else np.zeros(len(self), dtype=np.int64)

    @property
    def completion(self) -> Counts:
        """[R] tokens of the completion, or all if the file does not part them."""
        if self.layout != "none":
            return self.lists["token_ids" if self.layout == "full" else "completion_ids"].lengths
        lengths = [self.lists[name].lengths for name in LOGPROBS if name in self.lists]
        longest: Counts = np.maximum.reduce(lengths)
        return longest


@lru_cache(maxsize=256)
def layout_of(present: tuple[str, ...]) -> Layout:
    """How the columns that are there say which token is which. Raises: FieldError if they do not."""
    if not any(name in present for name in LOGPROBS):
        raise FieldError(LOGPROBS[0], "neither rollout_logprobs nor trainer_logprobs is there; nothing can be compared")
    parts = [name for name in IDS[1:] if name in present]
    if len(parts) == 1:
        (other,) = {*IDS[1:]} - {*parts}
        raise FieldError(other, f"is not there, and {parts[0]} is. Write both, or token_ids with sampled")
    if parts:
        return "parts"
    if "token_ids" not in present:
        return "none"
    if not any(name in present for name in MASKS):
        raise FieldError(
            "sampled",
            "neither sampled nor loss_mask says which of token_ids the policy sampled. Write one of them, or "
            "prompt_ids and completion_ids in place of token_ids",
        )
    return "full"


def refused(rows: Rows) -> tuple[Rows, list[NumberedRefusal]]:
    """The rows that do not contradict themselves, and the others by name."""
    found: list[NumberedRefusal] = []
    for audit in (_lengths, _ids, _masks, _same_ids, _scalars):
        good = np.ones(len(rows), dtype=np.bool_)
        for row, field, why in audit(rows):
            if good[row]:
                found.append((int(rows.numbers[row]), Refusal(where=rows.where(row), field=field, why=why)))
            good[row] = False
        rows = rows if good.all() else rows.kept(good)
    return rows, found


def _lengths(rows: Rows) -> Found:
    completion = rows.completion
    tokens = rows.prompt + completion
    for name in (*IDS, *MASKS):
        yield from _without_list(rows, name)
    if rows.layout == "none":
        yield from _without_any_list(rows)
    if rows.layout == "parts" and "token_ids" in rows.lists:
        for row in np.flatnonzero(rows.lists["token_ids"].lengths != tokens).tolist():
            yield row, "token_ids", misfit(_at(rows, "token_ids", row), int(tokens[row]))
    for name in (*MASKS, *LOGPROBS):
        if name not in rows.lists:
            continue
        lists = rows.lists[name]
        bad = (lists.lengths != tokens) & (lists.lengths != completion)
        for row in np.flatnonzero(bad if lists.missing is None else bad & ~lists.missing).tolist():
            yield row, name, _misfit(_at(rows, name, row), int(tokens[row]), int(completion[row]))


def _misfit(found: int, tokens: int, completion: int) -> str:
    if completion == tokens or abs(found - tokens) == 1 < abs(found - completion):
        return misfit(found, tokens)
    return misfit(found, completion, of=f"tokens of the completion ({tokens} with the prompt)")


def _without_list(rows: Rows, name: str) -> Found:
    lists = rows.lists.get(name)
    for row in np.flatnonzero(lists.missing).tolist() if lists is not None and lists.missing is not None else []:
        yield row, name, "null stands where a list belongs"


def _without_any_list(rows: Rows) -> Found:
    there = [rows.lists[name] for name in LOGPROBS if name in rows.lists]
    missing = [lists.missing for lists in there if lists.missing is not None]
    if len(missing) == len(there):
        for row in np.flatnonzero(np.logical_and.reduce(missing)).tolist():
            yield row, LOGPROBS[0], "holds no list, and there are no token ids that would say how many tokens there are"


def _ids(rows: Rows) -> Found:
    for name in IDS:
        if name not in rows.lists:
            continue
        lists = rows.lists[name]
        if lists.nulls is not None:
            for row in lists.rows_of(lists.nulls).tolist():
                yield row, name, "holds null where a token id belongs"
        values = lists.values
        if len(values) and (values.min() < 0 or values.max() > LARGEST_ID):
            for row in lists.rows_of((values < 0) | (values > LARGEST_ID)).tolist():
                own = lists.of_row(row)
                at = int(np.argmax((own < 0) | (own > LARGEST_ID)))
                yield row, name, f"entry {at} is {own[at]}; a token id is 0 to 2^31 - 1. Write no padding into it"


def _masks(rows: Rows) -> Found:
    for name in MASKS:
        if name not in rows.lists:
            continue
        lists = rows.lists[name]
        if lists.nulls is not None:
            for row in lists.rows_of(lists.nulls).tolist():
                yield row, name, "holds null where true or false belongs"
        if lists.values.dtype != np.bool_:
            for row in lists.rows_of((lists.values != 0) & (lists.values != 1)).tolist():
                own = lists.of_row(row)
                at = int(np.argmax((own != 0) & (own != 1)))
                yield row, name, f"entry {at} is {own[at]}, where true, false, 1 or 0 belongs"


def _same_ids(rows: Rows) -> Found:
    if rows.layout != "parts" or "token_ids" not in rows.lists:
        return
    both = joined(rows)
    told = rows.lists["token_ids"]
    for row in told.rows_of(told.values != both).tolist():
        yield row, "token_ids", "are other ids than prompt_ids and completion_ids are. Write one or the other"


def _scalars(rows: Rows) -> Found:
    for name, read in SCALARS.items():
        given = rows.scalars.get(name, ())
        try:
            for value in given:
                read(name, value)
        except FieldError:
            yield from _faulty(name, given)


def _faulty(name: str, given: Sequence[Any]) -> Found:
    for row, value in enumerate(given):
        try:
            SCALARS[name](name, value)
        except FieldError as error:
            yield row, name, error.why


def joined(rows: Rows) -> Any:
    """[N] the ids of prompts and completions, row by row."""
    prompts, completions = rows.lists["prompt_ids"], rows.lists["completion_ids"]
    ids = np.empty(len(prompts.values) + len(completions.values), dtype=np.int32)
    inside = in_completion(rows)
    ids[inside] = completions.values
    ids[~inside] = prompts.values
    return ids


def in_completion(rows: Rows) -> BoolArray:
    """[N] the tokens of completions."""
    turns = np.stack([rows.prompt, rows.completion], axis=1).ravel()
    return np.repeat(np.tile(np.array([False, True]), len(rows)), turns)


def _at(rows: Rows, name: str, row: int) -> int:
    return int(rows.lists[name].lengths[row])
