"""Parquet of unknown origin: what it claims is compared with its size before anything is unpacked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onepolicy.dumps.parquet_footer import ClaimedColumn, ClaimedGroup, claims, dictionary_bytes
from onepolicy.dumps.source import FREE_BYTES, MAX_RATIO
from onepolicy.errors import DumpError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

BATCH_VALUES = 1 << 22
"""values of one column that are in memory at once: 32 MiB of float64"""
MAX_ROW_VALUES = 1 << 26
"""values of one row of one column: 64 million tokens, beyond any context"""
MAX_ROWS_AT_ONCE = 1 << 16
BUFFER = 1 << 18
"""bytes of a column that are read at a time: without it pyarrow keeps all that a row group has of it, as stored"""
BATCH_BYTES = 1 << 28
"""bytes of text of one column that are in memory at once, if each value is as long as the column's whole dictionary"""


@dataclass(frozen=True, slots=True)
class CheckedParquet:
    """An open file whose claims fit its size."""

    name: str
    size: int
    source: Any
    file: pq.ParquetFile
    groups: list[ClaimedGroup]

    def batches(
        self, columns: Sequence[str] | None = None, *, position: Callable[[int], None] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The rows, as many at a time as keep memory flat. Raises: DumpError if a page is damaged."""
        import pyarrow as pa  # noqa: PLC0415

        wanted = None if columns is None else list(columns)
        for number, group in enumerate(self.groups):
            rows = min(rows_at_once(group, columns), self._rows_of_text(group, columns))
            try:
                for batch in self.file.iter_batches(
                    batch_size=rows, row_groups=[number], columns=wanted, use_threads=False
                ):
                    batch.validate(full=True)  # strings that are not UTF-8 fail far from here
                    yield batch
            except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
                raise _damaged(f"{self.name}, row group {number}", error) from error
            if position is not None:
                position(self.size * (number + 1) // len(self.groups))

    def _rows_of_text(self, group: ClaimedGroup, columns: Sequence[str] | None) -> int:
        """A string that the file holds once can stand in every row."""
        rows = MAX_ROWS_AT_ONCE
        try:
            with _searched(self.source) as file:
                for column in _wanted(group, columns):
                    if column.text_at is not None:
                        longest = dictionary_bytes(file, column.text_at) * _per_row(group, column.values)
                        rows = min(rows, max(BATCH_BYTES // max(longest, 1), 1))
        except (DumpError, OSError, ValueError) as error:
            raise _damaged(self.name, error) from error
        return rows


def opened(source: Any, *, name: str, size: int) -> CheckedParquet:
    """An open file whose claims fit its size: of a path, a file or a buffer.

    Raises: DumpError if it is damaged or claims more.
    """
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    groups = _claims(source, name)
    for number, group in enumerate(groups):
        check_group(group, where=f"{name}, row group {number}", size=size)
    try:
        file = pq.ParquetFile(source, buffer_size=BUFFER, pre_buffer=False)
        _ = file.schema_arrow
    except (pa.ArrowException, OSError, ValueError, MemoryError, RuntimeError) as error:
        raise _damaged(name, error) from error
    return CheckedParquet(name, size, source, file, groups)


def _claims(source: Any, name: str) -> list[ClaimedGroup]:
    try:
        with _searched(source) as file:
            return claims(file)
    except (DumpError, OSError) as error:
        raise _damaged(name, error) from error


@contextmanager
def _searched(source: Any) -> Iterator[Any]:
    """A path opened, or an open file as it is; pyarrow looks for its own place in it."""
    if isinstance(source, str):
        with Path(source).open("rb") as file:
            yield file
    else:
        yield source


def rows_at_once(group: ClaimedGroup, columns: Sequence[str] | None = None) -> int:
    """So many rows that the longest of these columns has about `BATCH_VALUES` values."""
    most = max((column.values for column in _wanted(group, columns)), default=0)
    return min(max(BATCH_VALUES // _per_row(group, most), 1), MAX_ROWS_AT_ONCE)


def _per_row(group: ClaimedGroup, values: int) -> int:
    return max(values // max(group.rows, 1), 1)


def _wanted(group: ClaimedGroup, columns: Sequence[str] | None) -> list[ClaimedColumn]:
    return [c for c in group.columns if columns is None or any(_below(c.path, name) for name in columns)]


def _below(path: str, column: str) -> bool:
    return path == column or path.startswith(f"{column}.")


def check_group(group: ClaimedGroup, *, where: str, size: int) -> None:
    """Raises: DumpError if a row group claims what a file of this size cannot hold."""
    if group.rows < 0 or any(column.values < 0 for column in group.columns):
        raise DumpError(f"{where}: claims a negative number of rows or values; the file is damaged")
    needed = sum(max(column.values * column.width, column.unpacked) for column in group.columns)
    if needed > FREE_BYTES and needed > MAX_RATIO * size:
        raise DumpError(
            f"{where}: claims values of {needed} bytes in a file of {size}, more than {MAX_RATIO} times as much. "
            "If it is a recording, write it again without compression."
        )
    for column in group.columns:
        if column.values > MAX_ROW_VALUES * max(group.rows, 1):
            raise DumpError(
                f"{where}: the column {column.path!r} claims {column.values} values in {group.rows} rows, more than "
                f"{MAX_ROW_VALUES} for each"
            )


def _damaged(name: str, error: BaseException) -> DumpError:
    return DumpError(
        f"{name}: is a damaged Parquet file ({str(error)[:300]}). Copy it again; if it is still being written, wait."
    )
