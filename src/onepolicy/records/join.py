"""A reading's rows in the order of a run's rollouts, in flat memory, whatever the order they were written in."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from onepolicy.errors import ForeignReadingError, RunError
from onepolicy.records.parquet import (
    MOMENT_COLUMNS,
    READING_SCHEMA,
    TOP_SCHEMA,
    ReadingBlock,
    RolloutBlock,
    reading_block,
    top_rows,
)
from onepolicy.records.reading import TopLists
from onepolicy.records.run import Run
from onepolicy.records.stored import open_parquet, read_row_group
from onepolicy.records.tokens import Float32, IntArray, StateArray, TokenState, digest_of_ids

_KEPT_ROW_GROUPS = 6
BlockT = TypeVar("BlockT")


class _Place(NamedTuple):
    part: int
    group: int
    row: int

    @property
    def packed(self) -> int:
        """As one number: there is one for each rollout of a run, and a tuple takes three times the memory."""
        return self.part << 48 | self.group << 24 | self.row

    @classmethod
    def unpacked(cls, packed: int) -> _Place:
        """The same, back."""
        return cls(packed >> 48, packed >> 24 & 0xFFFFFF, packed & 0xFFFFFF)


class _RowGroups(Generic[BlockT]):
    """Where each rollout's row lies in some part files, and the row groups that were read last."""

    def __init__(
        self,
        parts: list[Path],
        schema: pa.Schema,
        decode: Callable[[pa.Table], BlockT],
        *,
        optional: tuple[str, ...] = (),
    ) -> None:
        self._parts = parts
        self._schema = schema
        self._columns = {*schema.names, *optional}
        self._decode = decode
        self._cache: OrderedDict[tuple[int, int], BlockT] = OrderedDict()
        self._places = self._index()

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, rollout_id: str) -> bool:
        return rollout_id in self._places

    def place(self, rollout_id: str) -> _Place | None:
        """Where a rollout's row lies; None if it has none."""
        packed = self._places.get(rollout_id)
        return None if packed is None else _Place.unpacked(packed)

    def block(self, part: int, group: int) -> BlockT:
        """One row group, from the few that are kept or from disk."""
        key = (part, group)
        if key not in self._cache:
            self._cache[key] = self._read(self._parts[part], group)
            if len(self._cache) > _KEPT_ROW_GROUPS:
                self._cache.popitem(last=False)
        self._cache.move_to_end(key)
        return self._cache[key]

    def _read(self, path: Path, group: int) -> BlockT:
        with open_parquet(path, self._schema) as file:
            wanted = [name for name in file.schema_arrow.names if name in self._columns]
            table = read_row_group(path, file, group, wanted)
        try:
            return self._decode(table)
        except RunError as error:
            raise RunError(f"{path}: {error}") from error

    def _index(self) -> dict[str, int]:
        places: dict[str, int] = {}
        for part, path in enumerate(self._parts):
            with open_parquet(path, self._schema) as file:
                for group in range(file.num_row_groups):
                    ids = read_row_group(path, file, group, ["rollout_id"])["rollout_id"].to_pylist()
                    self._add(places, ids, part=part, group=group)
        return places

    def _add(self, places: dict[str, int], ids: list[str], *, part: int, group: int) -> None:
        for row, rollout_id in enumerate(ids):
            if rollout_id in places:
                raise RunError(
                    f"{self._parts[part]}: rollout {rollout_id} stands here and in "
                    f"{self._parts[_Place.unpacked(places[rollout_id]).part].name}. Remove one of the files."
                )
            places[rollout_id] = _Place(part, group, row).packed


class ReadingJoin:
    """Gives the rows of one reading for a block of rollouts.

    Raises: ForeignReadingError if a row scored other ids than the run's, or belongs to a rollout that the run does not
    have; RunError if a rollout stands in two rows, or a row is damaged.
    """

    def __init__(self, run: Run, name: str) -> None:
        self.info = run.reading_info(name)
        self._name = name
        self._rows = _RowGroups(run.reading_parts(name), READING_SCHEMA, reading_block, optional=MOMENT_COLUMNS)
        self._used = 0

    def take(self, rollouts: RolloutBlock, digests: list[str]) -> ReadingBlock:
        """The rows for these rollouts, entry for entry; a rollout that was not scored comes back as ABSENT."""
        whole = self._whole_group(rollouts.rollout_ids)
        block = whole if whole is not None else self._gather(rollouts)
        self._used += sum(rollout_id in self._rows for rollout_id in rollouts.rollout_ids)
        self._check(rollouts, digests, block)
        return block

    def finish(self) -> None:
        """Raise if the reading has rows for rollouts that the run does not have."""
        if self._used != len(self._rows):
            raise ForeignReadingError(
                f"reading {self._name!r} has {len(self._rows) - self._used} rows for rollouts that the run does "
                "not have. It was copied from another run, or rollouts were removed; score this run again."
            )

    def _whole_group(self, rollout_ids: list[str]) -> ReadingBlock | None:
        first = self._rows.place(rollout_ids[0]) if rollout_ids else None
        if first is None or first.row != 0:
            return None
        block = self._rows.block(first.part, first.group)
        return block if block.rollout_ids == rollout_ids else None

    def _gather(self, rollouts: RolloutBlock) -> ReadingBlock:
        lengths = np.diff(rollouts.offsets).tolist()
        rows = [self._row(i, n) for i, n in zip(rollouts.rollout_ids, lengths, strict=True)]
        offsets = np.zeros(len(rows) + 1, dtype=np.int64)
        np.cumsum([len(row.logprobs) for row in rows], out=offsets[1:])
        return ReadingBlock(
            rollout_ids=rollouts.rollout_ids,
            digests=[row.digest for row in rows],
            offsets=offsets,
            logprobs=_joined([row.logprobs for row in rows], np.float32),
            states=_joined([row.states for row in rows], np.uint8),
            top1=_joined_if_all([row.top1 for row in rows]),
            entropy=_joined_if_all([row.entropy for row in rows]),
            varentropy=_joined_if_all([row.varentropy for row in rows]),
        )

    def _row(self, rollout_id: str, length: int) -> _Row:
        place = self._rows.place(rollout_id)
        if place is None:
            nothing = np.full(length, np.nan, dtype=np.float32)
            absent = np.full(length, TokenState.ABSENT, dtype=np.uint8)
            return _Row("", nothing, absent, np.full(length, -1, dtype=np.int32), nothing, nothing)
        block = self._rows.block(place.part, place.group)
        part = slice(block.offsets[place.row], block.offsets[place.row + 1])
        return _Row(
            block.digests[place.row],
            block.logprobs[part],
            block.states[part],
            None if block.top1 is None else block.top1[part],
            None if block.entropy is None else block.entropy[part],
            None if block.varentropy is None else block.varentropy[part],
        )

    def _check(self, rollouts: RolloutBlock, digests: list[str], block: ReadingBlock) -> None:
        rows = zip(rollouts.rollout_ids, digests, block.digests, pairwise(rollouts.offsets.tolist()), strict=True)
        for rollout_id, wanted, found, (start, end) in rows:
            if found != wanted and rollout_id in self._rows:
                raise ForeignReadingError(
                    f"rollout {rollout_id}: reading {self._name!r} scored other token ids (digest {found}) than the "
                    f"run has ({wanted}). {_how(rollouts.token_ids[start:end], found)}; score this run again."
                )
        if not np.array_equal(rollouts.offsets, block.offsets):
            have, found_lengths = np.diff(rollouts.offsets), np.diff(block.offsets)
            row = int(np.flatnonzero(have != found_lengths)[0])
            raise RunError(
                f"rollout {rollouts.rollout_ids[row]}: {have[row]} tokens, and reading {self._name!r} has "
                f"{found_lengths[row]} entries. The reading is damaged; score this run again."
            )


def _how(ids: IntArray, digest: str) -> str:
    """Which ids were scored instead, as far as a digest tells."""
    edits = {
        "It scored the ids with the first one twice, as an engine does that adds BOS again": (ids[:1], ids),
        "It scored the ids without the first one, as an engine does that leaves out BOS": (ids[1:],),
        "It scored the ids with the last one twice, as an engine does that adds EOS again": (ids, ids[-1:]),
        "It scored the ids without the last one, as an engine does that leaves out EOS": (ids[:-1],),
    }
    known = (words for words, parts in edits.items() if digest_of_ids(np.concatenate(parts)) == digest)
    return next(known, "The reading was copied from another run, or the rollouts were changed after scoring")


class TopJoin:
    """Gives the top lists that a reading keeps of a rollout; None where it keeps none."""

    def __init__(self, run: Run, name: str) -> None:
        self._rows = _RowGroups(run.top_parts(name), TOP_SCHEMA, lambda table: list(top_rows(table)))

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, rollout_id: str) -> TopLists | None:
        """The rollout's top lists."""
        place = self._rows.place(rollout_id)
        return None if place is None else self._rows.block(place.part, place.group)[place.row][1]


class _Row(NamedTuple):
    digest: str
    logprobs: Float32
    states: StateArray
    top1: IntArray | None
    entropy: Float32 | None
    varentropy: Float32 | None


def _joined(rows: Sequence[np.ndarray], dtype: type[np.generic]) -> np.ndarray:
    return np.concatenate(rows) if rows else np.empty(0, dtype=dtype)


def digests_of(rollouts: RolloutBlock) -> list[str]:
    """The digest of each rollout's ids, computed from the ids that are there."""
    bounds = rollouts.offsets.tolist()
    return [digest_of_ids(rollouts.token_ids[a:b]) for a, b in pairwise(bounds)]


def _joined_if_all(rows: Sequence[np.ndarray | None]) -> np.ndarray | None:
    given = [row for row in rows if row is not None]
    return np.concatenate(given) if given and len(given) == len(rows) else None
