"""Parquet -> rows by our names, a bounded number of tokens at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from onepolicy.dumps.block import BLOCK_TOKENS
from onepolicy.dumps.fields import FieldError
from onepolicy.errors import DumpError
from onepolicy.integrations.columns.lists import from_arrow
from onepolicy.integrations.columns.rows import IDS, LISTS, LOGPROBS, MASKS, Layout, Rows, layout_of

if TYPE_CHECKING:
    import pyarrow as pa

    from onepolicy.dumps.file import DumpFile

_WHAT = {**dict.fromkeys(IDS, "whole numbers"), **dict.fromkeys(MASKS, "booleans"), **dict.fromkeys(LOGPROBS, "floats")}


def parquet_rows(file: DumpFile, names: Mapping[str, str]) -> Iterator[Rows]:
    """The rows of a Parquet file. names: ours -> those of the file.

    Raises: DumpError if the file is damaged, or its columns are not what they should be.
    """
    parquet = file.parquet()
    schema = parquet.schema_arrow
    present = {ours: theirs for ours, theirs in names.items() if theirs in schema.names}
    for ours, theirs in present.items():
        if schema.names.count(theirs) > 1:
            raise DumpError(f"{file.name}: has {schema.names.count(theirs)} columns {theirs!r}. Write one.")
        _check_type(file.name, ours, theirs, schema.field(theirs).type)
    present = {ours: theirs for ours, theirs in present.items() if str(schema.field(theirs).type) != "null"}
    try:
        layout = layout_of(tuple(present))
    except FieldError as error:
        raise DumpError(f"{file.name}: {error}. Its columns: {', '.join(schema.names)}.") from None
    first = 0
    for batch in file.batches(list(dict.fromkeys(present.values()))):
        for part in _parts(batch, next(theirs for ours, theirs in present.items() if ours in LOGPROBS)):
            yield _rows(file, part, present, layout=layout, first=first)
            first += part.num_rows


def _rows(file: DumpFile, batch: pa.RecordBatch, present: Mapping[str, str], *, layout: Layout, first: int) -> Rows:
    return Rows(
        file=file.name,
        numbers=np.arange(first, first + batch.num_rows, dtype=np.int64),
        wheres=None,
        layout=layout,
        lists={ours: from_arrow(batch.column(theirs)) for ours, theirs in present.items() if ours in LISTS},
        scalars={ours: batch.column(theirs).to_pylist() for ours, theirs in present.items() if ours not in LISTS},
    )


def _parts(batch: pa.RecordBatch, column: str) -> Iterator[pa.RecordBatch]:
    """A batch as slices of about BLOCK_TOKENS entries of a list column, so that memory stays small."""
    import pyarrow.compute as pc  # noqa: PLC0415 - loaded when a Parquet file is read

    entries = int(pc.sum(pc.list_value_length(batch.column(column))).as_py() or 0)
    rows = max(1, batch.num_rows * BLOCK_TOKENS // max(entries, 1))
    yield from (batch.slice(start, rows) for start in range(0, batch.num_rows, rows))


def _check_type(file: str, ours: str, theirs: str, found: pa.DataType) -> None:
    """Raises: DumpError if a column is not of the kind that its name says."""
    import pyarrow as pa  # noqa: PLC0415 - loaded when a Parquet file is read

    kinds = pa.types
    if ours in LISTS:
        is_list = kinds.is_list(found) or kinds.is_large_list(found) or kinds.is_fixed_size_list(found)
        inner = found.value_type if is_list else found
        number = kinds.is_integer(inner) or (ours not in IDS and kinds.is_floating(inner))
        good = is_list and (number or kinds.is_null(inner) or (ours in MASKS and kinds.is_boolean(inner)))
        wanted = f"a list of {_WHAT[ours]}"
    elif ours in {"step", "reward", "advantage"}:
        good, wanted = kinds.is_integer(found) or kinds.is_floating(found), "a number"
    elif ours == "tags":
        good = kinds.is_string(found) or kinds.is_large_string(found) or kinds.is_map(found) or kinds.is_struct(found)
        wanted = "JSON, a map or a struct"
    else:
        inner = found.value_type if kinds.is_dictionary(found) else found
        good = kinds.is_string(inner) or kinds.is_large_string(inner) or kinds.is_integer(inner)
        wanted = "text or a whole number"
    if not good and not kinds.is_null(found):
        raise DumpError(
            f"{file}: the column {theirs!r} is of type {found}, and {ours} is {wanted}. Convert it, or name another "
            f"column with --columns {ours}=NAME."
        )
