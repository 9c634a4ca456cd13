"""What a Parquet file claims to hold, from its footer, before pyarrow is asked.

pyarrow's own view of a row group ends the process on some damaged footers (a C++ error that Python does not see), so
the counts are read here. Source: parquet.thrift of the Parquet format (FileMetaData and below), and Thrift's compact
protocol.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, BinaryIO

from onepolicy.errors import DumpError

MAX_FOOTER = 1 << 28
"""bytes; one of a thousand row groups with a hundred columns has about 20 million"""
MAX_DEPTH = 16
"""of structures in structures; the format has six"""
_WIDTHS = {0: 1, 1: 4, 4: 4}
"""physical type (BOOLEAN, INT32, FLOAT) -> bytes of a value in memory, if not 8"""


@dataclass(frozen=True, slots=True)
class ClaimedColumn:
    """One leaf column of a row group."""

    path: str
    """with the names of lists in it: ids.list.element"""
    values: int
    width: int
    """bytes of a value in memory"""
    unpacked: int = 0
    """bytes of its pages after unpacking"""
    text_at: int | None = None
    """where its first page begins, if its values are strings or bytes; that page may be a dictionary of them"""


@dataclass(frozen=True, slots=True)
class ClaimedGroup:
    """One row group."""

    rows: int
    columns: tuple[ClaimedColumn, ...]


def claims(file: BinaryIO) -> list[ClaimedGroup]:
    """The row groups of an open file. Raises: DumpError without the file's name if there is no readable footer."""
    size = file.seek(0, 2)
    file.seek(max(size - 8, 0))
    tail = bytes(file.read(8))
    length = int.from_bytes(tail[:4], "little")
    if size < 12 or tail[4:] != b"PAR1" or length > size - 12 or length > MAX_FOOTER:
        raise DumpError("its end is not that of a Parquet file")
    file.seek(size - 8 - length)
    try:
        found = _Compact(bytes(file.read(length))).struct(0)
        return [_group(group) for group in found[4]]
    except (IndexError, KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise DumpError("its footer cannot be read") from error


def _group(found: dict[int, Any]) -> ClaimedGroup:
    return ClaimedGroup(rows=int(found[3]), columns=tuple(_column(column[3]) for column in found[1]))


def _column(found: dict[int, Any]) -> ClaimedColumn:
    path = ".".join(bytes(part).decode("utf-8") for part in found[3])
    first = min(int(found[9]), int(found.get(11) or found[9]))
    return ClaimedColumn(
        path=path,
        values=int(found[5]),
        width=_WIDTHS.get(found[1], 8),
        unpacked=int(found[6]),
        text_at=first if found[1] in _TEXTS else None,
    )


def dictionary_bytes(file: BinaryIO, at: int) -> int:
    """Bytes of the dictionary of strings that begins here, 0 if the page is none. No value of it can be longer."""
    file.seek(max(at, 0))
    try:
        found = _Compact(bytes(file.read(_PAGE_HEAD))).struct(0)
        return int(found[2]) if found[1] == _DICTIONARY_PAGE else 0
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise DumpError(f"the head of the page at byte {at} cannot be read") from error


_TEXTS = frozenset({6, 7})
"""BYTE_ARRAY, FIXED_LEN_BYTE_ARRAY"""
_DICTIONARY_PAGE = 2
_PAGE_HEAD = 1 << 16
"""bytes; it has about 30, more with the largest and smallest string of the page"""


class _Compact:
    """Thrift's compact protocol: a structure is a dict of field number -> value."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def struct(self, depth: int) -> dict[int, Any]:
        if depth > MAX_DEPTH:
            raise DumpError("its footer is nested too deep")
        found: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            step = head >> 4
            number = number + step if step else self._zigzag()
            kind = head & 15
            found[number] = kind == 1 if kind in {1, 2} else self._value(kind, depth)
        return found

    def _value(self, kind: int, depth: int) -> Any:
        if kind in {3, 7}:
            return self._take(1 if kind == 3 else 8)
        if kind in {4, 5, 6}:
            return self._zigzag()
        if kind == 8:
            return self._take(self._varint())
        if kind in {9, 10}:
            return self._list(depth)
        if kind == 12:
            return self.struct(depth + 1)
        raise DumpError(f"its footer has a value of the unknown kind {kind}")

    def _list(self, depth: int) -> list[Any]:
        head = self._byte()
        kind, count = head & 15, head >> 4
        if count == 15:
            count = self._varint()
        if count > len(self._data) - self._at:  # each entry has a byte at least
            raise DumpError(f"its footer claims {count} entries in {len(self._data) - self._at} bytes")
        if kind in {1, 2}:
            return list(self._take(count))
        return [self._value(kind, depth + 1) for _ in range(count)]

    def _byte(self) -> int:
        found = self._data[self._at]
        self._at += 1
        return found

    def _take(self, length: int) -> bytes:
        end = self._at + length
        if end > len(self._data):
            raise DumpError("its footer is cut short")
        found = self._data[self._at : end]
        self._at = end
        return found

    def _varint(self) -> int:
        found = shift = 0
        while True:
            byte = self._byte()
            found |= (byte & 0x7F) << shift
            if byte < 0x80:
                return found
            shift += 7
            if shift > 63:
                raise DumpError("its footer has a number of more than 64 bits")

    def _zigzag(self) -> int:
        found = self._varint()
        return (found >> 1) ^ -(found & 1)
