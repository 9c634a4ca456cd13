"""JSON lines -> rows by our names: each list is packed as it is read, many rows are worked on at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from onepolicy.dumps.block import BLOCK_TOKENS
from onepolicy.dumps.contract import Refusal
from onepolicy.dumps.fields import mask, numbers32, refusing, token_ids
from onepolicy.integrations.columns.lists import Given, from_rows
from onepolicy.integrations.columns.rows import (
    IDS,
    LISTS,
    LOGPROBS,
    MASKS,
    SCALARS,
    Layout,
    NumberedRefusal,
    Rows,
    layout_of,
)

if TYPE_CHECKING:
    from onepolicy.dumps.file import DumpFile

_DTYPE = {**dict.fromkeys(IDS, np.int32), **dict.fromkeys(MASKS, np.bool_), **dict.fromkeys(LOGPROBS, np.float32)}
BLOCK_ROWS = 1 << 16
"""rows together at most, however short they are"""


@dataclass(slots=True, kw_only=True, eq=False)
class _Read:
    """One line: its lists as arrays, its scalars as they came."""

    number: int
    where: str
    layout: Layout
    lists: dict[str, Given | None]
    scalars: dict[str, Any]

    @property
    def tokens(self) -> int:
        return max((len(given[0]) for given in self.lists.values() if given is not None), default=0)


@dataclass(slots=True, kw_only=True, eq=False)
class _Gathered:
    """Lines that have the same lists, and those between them that are no rows."""

    rows: list[_Read] = field(default_factory=list)
    refused: list[NumberedRefusal] = field(default_factory=list)
    tokens: int = 0

    def fits(self, row: _Read | Refusal) -> bool:
        if self.tokens >= BLOCK_TOKENS or len(self.rows) + len(self.refused) >= BLOCK_ROWS:
            return False
        return isinstance(row, Refusal) or not self.rows or self.rows[0].lists.keys() == row.lists.keys()

    def add(self, number: int, row: _Read | Refusal) -> None:
        if isinstance(row, Refusal):
            self.refused.append((number, row))
            return
        self.rows.append(row)
        self.tokens += row.tokens

    def together(self, file: str) -> tuple[Rows, list[NumberedRefusal]]:
        first = self.rows[0] if self.rows else _Read(number=0, where="", layout="none", lists=_NOTHING, scalars={})
        named = dict.fromkeys(name for row in self.rows for name in row.scalars)
        return Rows(
            file=file,
            numbers=np.array([row.number for row in self.rows], dtype=np.int64),
            wheres=[row.where for row in self.rows],
            layout=first.layout,
            lists={name: from_rows([row.lists[name] for row in self.rows], _DTYPE[name]) for name in first.lists},
            scalars={name: [row.scalars.get(name) for row in self.rows] for name in named},
        ), self.refused


_NOTHING: dict[str, Given | None] = {LOGPROBS[0]: None}


def jsonl_rows(file: DumpFile, names: Mapping[str, str]) -> Iterator[tuple[Rows, list[NumberedRefusal]]]:
    """The rows of a JSON or JSONL file, and the refusals of lines that hold no row. names: ours -> those of the file.

    A new batch begins where a line has other columns than the one before. Raises: DumpError if a line is no JSON.
    """
    gathered = _Gathered()
    for number, where, line in file.numbered_objects():
        row = refusing(where, partial(_read, number, where, line, names))
        if not gathered.fits(row):
            yield gathered.together(file.name)
            gathered = _Gathered()
        gathered.add(number, row)
    if gathered.rows or gathered.refused:
        yield gathered.together(file.name)


def _read(number: int, where: str, line: Mapping[str, Any], names: Mapping[str, str]) -> _Read:
    given = {ours: line[theirs] for ours, theirs in names.items() if theirs in line}
    return _Read(
        number=number,
        where=where,
        layout=layout_of(tuple(given)),
        lists={name: _list(name, given[name]) for name in LISTS if name in given},
        scalars={name: given[name] for name in SCALARS if name in given},
    )


def _list(name: str, given: Any) -> Given | None:
    if name in IDS:
        return token_ids(name, given), None
    if name in MASKS:
        return mask(name, given), None
    return None if given is None else numbers32(name, given)
