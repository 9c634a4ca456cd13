"""A list column of many rows as flat arrays, from Arrow or from JSON, without an object for each token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from onepolicy.records.tokens import BoolArray

if TYPE_CHECKING:
    import pyarrow as pa

Counts = npt.NDArray[np.int64]
Given = tuple[npt.NDArray[Any], BoolArray | None]
"""the values of one row, and which of them are null"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lists:
    """R lists; row r owns the `lengths[r]` values after those of the rows before it."""

    lengths: Counts
    """[R] 0 where there is no list"""
    values: npt.NDArray[Any]
    """[N] something where there is null"""
    nulls: BoolArray | None
    """[N] entries that are null; None if none is"""
    missing: BoolArray | None
    """[R] rows that have null in place of the list; None if none has"""

    def kept(self, rows: BoolArray) -> Lists:
        """The same of the rows that are True. Shape: [R]."""
        entries = np.repeat(rows, self.lengths)
        return Lists(
            lengths=self.lengths[rows],
            values=self.values[entries],
            nulls=None if self.nulls is None else self.nulls[entries],
            missing=None if self.missing is None else self.missing[rows],
        )

    def rows_of(self, entries: BoolArray) -> npt.NDArray[np.intp]:
        """The rows that own an entry which is True, each once. Shape: [N]."""
        ends = np.cumsum(self.lengths)
        return np.unique(np.searchsorted(ends, np.flatnonzero(entries), side="right"))

    def of_row(self, row: int) -> npt.NDArray[Any]:
        """The values of one row."""
        end = int(self.lengths[: row + 1].sum())
        return self.values[end - int(self.lengths[row]) : end]


def from_arrow(column: pa.Array) -> Lists:
    """Lists of any kind that Arrow has, sliced or not; the numbers are Arrow's own memory where it can be."""
    import pyarrow.compute as pc  # noqa: PLC0415 - loaded when a Parquet file is read

    lengths = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    flat = pc.list_flatten(column)
    if str(flat.type) == "null":
        flat = flat.cast("float32")
    nulls = flat.is_null().to_numpy(zero_copy_only=False) if flat.null_count else None
    if nulls is not None and str(flat.type) != "halffloat":  # which Arrow fills itself, with NaN
        flat = flat.fill_null(False if str(flat.type) == "bool" else 0)
    return Lists(
        lengths=lengths,
        values=flat.to_numpy(zero_copy_only=False),
        nulls=nulls,
        missing=column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None,
    )


def from_rows(rows: Sequence[Given | None], dtype: npt.DTypeLike) -> Lists:
    """Arrays of rows, None where a row has null in place of a list."""
    there = [row for row in rows if row is not None]
    return Lists(
        lengths=np.array([0 if row is None else len(row[0]) for row in rows], dtype=np.int64),
        values=np.concatenate([values for values, _ in there]) if there else np.empty(0, dtype=dtype),
        nulls=_nulls(there),
        missing=np.array([row is None for row in rows]) if len(there) < len(rows) else None,
    )


def _nulls(rows: Sequence[Given]) -> BoolArray | None:
    if all(nulls is None for _, nulls in rows):
        return None
    parts = [np.zeros(len(values), dtype=np.bool_) if nulls is None else nulls for values, nulls in rows]
    return np.concatenate(parts)
