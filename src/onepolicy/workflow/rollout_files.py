"""Rollouts in files that anybody may have written: JSONL and Parquet, row by row, in flat memory.

Columns: `token_ids`, or `completion_ids` with `prompt_ids` in front of it or without; `text`, of the completion or of
`token_ids`; `id` or `rollout_id`. A row needs ids or a text; further columns are not read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from onepolicy.errors import UsageError
from onepolicy.tokens.round_trip import Sample

IDS = ("token_ids", "prompt_ids", "completion_ids")
NAMES = ("id", "rollout_id")
TEXT = "text"
_LARGEST = 2**31 - 1
_ROWS = 1024


def is_parquet(path: Path) -> bool:
    """By what is in it, not by its name."""
    with path.open("rb") as file:
        return file.read(4) == b"PAR1"


def count_rows(path: Path) -> int:
    """How many rows a file has, for a progress bar; lines of a JSONL file, empty ones too."""
    if is_parquet(path):
        with _parquet(path) as file:
            return int(file.metadata.num_rows)
    with path.open("rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))


def samples_in(path: Path) -> Iterator[Sample]:
    """The rows of a file. Raises: UsageError that names the row and the field of what is malformed."""
    rows = _parquet_rows(path) if is_parquet(path) else _jsonl_rows(path)
    for where, row in rows:
        yield _sample(where, row)


def json_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Place and object of each line of a JSONL file. Raises: UsageError for a line that is none."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                where = f"{path}, line {number}"
                yield where, _object(where, line)


def name_of(where: str, row: Mapping[str, Any]) -> str:
    """What a row calls itself, or else its place in the file."""
    return next((str(row[key]) for key in NAMES if row.get(key) is not None), where.rpartition(", ")[2])


def _jsonl_rows(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    return ((where, _checked(where, row)) for where, row in json_rows(path))


def _object(where: str, line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except RecursionError as error:
        raise UsageError(f"{where}: is nested too deeply for JSON that anybody writes.") from error
    except ValueError as error:
        raise UsageError(f"{where}: is not JSON in UTF-8 ({str(error)[:120]}). Each line is one object.") from error
    if not isinstance(value, dict):
        raise UsageError(f"{where}: is no JSON object. Each line is one object.")
    return value


def _checked(where: str, row: dict[str, Any]) -> dict[str, Any]:
    for field in IDS:
        if row.get(field) is not None:
            check_ids(f"{where}: {field}", row[field])
    if row.get(TEXT) is not None and not isinstance(row[TEXT], str):
        raise UsageError(f"{where}: {TEXT} is a {type(row[TEXT]).__name__} and no string.")
    return row


def check_ids(where: str, ids: object) -> None:
    """Raises: UsageError that names the place, unless it is a list of token ids."""
    if not isinstance(ids, list):
        raise UsageError(f"{where} is a {type(ids).__name__} and no list of token ids.")
    if set(map(type, ids)) - {int}:
        place = next(place for place, value in enumerate(ids) if type(value) is not int)
        raise UsageError(f"{where}[{place}] = {json.dumps(ids[place])[:60]} is no whole number, and a token id is one.")
    if ids and (min(ids) < 0 or max(ids) > _LARGEST):
        place = next(place for place, value in enumerate(ids) if not 0 <= value <= _LARGEST)
        raise UsageError(f"{where}[{place}] = {str(ids[place])[:40]} is no token id: those are 0 to {_LARGEST}.")


def _parquet(path: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path, memory_map=True, pre_buffer=False)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read as Parquet ({str(error)[:200]}).") from error


def _parquet_rows(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    with _parquet(path) as file:
        found = file.schema_arrow
        columns = [name for name in (*NAMES, *IDS, TEXT) if name in found.names]
        for name in columns:
            _check_type(f"{path}: the column {name!r}", name, found.field(name).type)
        first = 1
        try:
            for batch in file.iter_batches(batch_size=_ROWS, columns=columns, use_threads=False):
                yield from _batch_rows(path, batch, first)
                first += batch.num_rows
        except (pa.ArrowException, OSError) as error:
            raise UsageError(f"{path}, row {first} or after: is damaged ({str(error)[:200]}).") from error


def _check_type(where: str, name: str, kind: pa.DataType) -> None:
    if name in IDS:
        is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
        if not (is_list and pa.types.is_integer(kind.value_type)):
            raise UsageError(f"{where} has the type {kind}; token ids are a list of whole numbers.")
    elif name == TEXT and not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise UsageError(f"{where} has the type {kind}; a text is a string.")


def _batch_rows(path: Path, batch: pa.RecordBatch, first: int) -> Iterator[tuple[str, Mapping[str, Any]]]:
    columns: dict[str, list[Any]] = {}
    for name in batch.schema.names:
        column = batch.column(name)
        columns[name] = _lists(path, name, column, first) if name in IDS else _plain(path, name, column, first)
    for row in range(batch.num_rows):
        yield f"{path}, row {first + row}", {name: values[row] for name, values in columns.items()}


def _plain(path: Path, name: str, column: pa.Array, first: int) -> list[Any]:
    try:
        return list(column.to_pylist())
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}, row {first} or after: {name} is no UTF-8 ({error}).") from error


def _lists(path: Path, name: str, column: pa.Array, first: int) -> list[list[int] | None]:
    values = column.values
    if values.null_count:
        raise UsageError(f"{path}, row {first} or after: {name} has a null among its ids.")
    ids, offsets = values.to_numpy(zero_copy_only=False), column.offsets.to_pylist()
    here = ids[offsets[0] : offsets[-1]]
    outside = np.flatnonzero((here < 0) | (here > _LARGEST))
    if len(outside):
        place = int(outside[0]) + offsets[0]
        row = int(np.searchsorted(offsets, place, side="right")) - 1
        where = f"{path}, row {first + row}: {name}[{place - offsets[row]}]"
        raise UsageError(f"{where} = {ids[place]} is no token id: those are 0 to {_LARGEST}.")
    present = column.is_valid().to_pylist()
    return [ids[a:b].tolist() if there else None for there, (a, b) in zip(present, pairwise(offsets), strict=True)]


_WANTED = "A row has token_ids, or completion_ids (and prompt_ids), or text."


def _sample(where: str, row: Mapping[str, Any]) -> Sample:
    whole, prompt, completion = (row.get(field) for field in IDS)
    text = row.get(TEXT)
    if whole is None and completion is None and text is None:
        raise UsageError(f"{where}: has nothing to check. {_WANTED}")
    if whole is not None and completion is not None:
        raise UsageError(
            f"{where}: has token_ids and completion_ids. Give one of them, or it is unclear what the text is of."
        )
    if prompt is not None and completion is None:
        raise UsageError(f"{where}: has prompt_ids and no completion_ids; what was sampled is what is checked.")
    _check_text(where, text)
    ids = whole if whole is not None else completion
    return Sample(name=name_of(where, row), ids=ids, text=text, start=len(prompt or []) if whole is None else 0)


def _check_text(where: str, text: str | None) -> None:
    try:
        (text or "").encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"{where}: {TEXT} has a lone surrogate (U+{ord(error.object[error.start]):04X}) at character "
            f"{error.start}, which no tokenizer takes. Write the ids instead."
        ) from error
