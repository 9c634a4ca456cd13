"""Records of a zip whose records are stored as they are, as torch writes it: views of the file, no copies.

Python's zipfile copies what it reads, and makes an object for each of the millions of entries that a hostile directory
lists. Source: PKWARE APPNOTE.TXT 6.3, sections 4.3.7 (local header), 4.3.12 (central directory), 4.3.14 to 4.3.16 (its
end, and zip64).
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass

from onepolicy.errors import DumpError

MAX_RECORDS = 2_000_000
"""one for each storage: a recording of a million rollouts has about this many tensors"""
_END = struct.Struct("<4s4H2LH")
_LOCATOR = struct.Struct("<4sLQL")
_END64 = struct.Struct("<4sQ2H2L4Q")
_ENTRY = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_FULL = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class _Record:
    header: int
    packed: int
    size: int
    method: int


class Records:
    """The records of a zip by name. Raises: DumpError if its directory is damaged, or points outside of the file."""

    def __init__(self, data: bytes | mmap.mmap | memoryview) -> None:
        self._view = memoryview(data)
        self.names: dict[str, _Record] = {}
        try:
            self._read_directory()
        except (struct.error, UnicodeDecodeError) as error:
            raise DumpError("the directory of the torch file is damaged; was it still being written?") from error

    def of(self, name: str) -> memoryview:
        """The bytes of a record. Raises: DumpError if there is none of that name, or if it is packed."""
        record = self.names.get(name)
        if record is None:
            raise DumpError(f"the torch file has no record {name[:80]!r}")
        if record.method != 0 or record.packed != record.size:
            raise DumpError(
                f"the record {name[:80]!r} of the torch file is packed; torch.save packs none. Unpack the file and zip "
                "it again with `zip -0`"
            )
        try:
            head = _LOCAL.unpack_from(self._view, record.header)
        except struct.error as error:
            raise DumpError(f"the record {name[:80]!r} lies outside of the torch file") from error
        start = record.header + _LOCAL.size + head[9] + head[10]
        if head[0] != b"PK\x03\x04" or start + record.size > len(self._view):
            raise DumpError(f"the record {name[:80]!r} of {record.size} bytes does not lie inside of the torch file")
        return self._view[start : start + record.size]

    def _read_directory(self) -> None:
        count, size, at = self._end()
        if count > MAX_RECORDS or at + size > len(self._view):
            raise DumpError(f"the torch file claims {count} records in a directory of {size} bytes")
        for _ in range(count):
            at = self._entry(at)

    def _end(self) -> tuple[int, int, int]:
        """How many records there are, the size of the directory, and where it begins."""
        tail = bytes(self._view[-(_END.size + 0xFFFF) :])
        found = tail.rfind(b"PK\x05\x06")
        if found < 0:
            raise DumpError("the torch file has no directory at its end; it is cut short, or was still being written")
        end = _END.unpack_from(tail, found)
        place = len(self._view) - len(tail) + found
        if place < _LOCATOR.size or bytes(self._view[place - _LOCATOR.size :][:4]) != b"PK\x06\x07":
            return end[4], end[5], end[6]
        _, _, start, _ = _LOCATOR.unpack_from(self._view, place - _LOCATOR.size)
        if start + _END64.size > len(self._view):
            raise DumpError("the directory of the torch file lies outside of it")
        end64 = _END64.unpack_from(self._view, start)
        if end64[0] != b"PK\x06\x06":
            raise DumpError("the directory of the torch file is damaged")
        return end64[7], end64[8], end64[9]

    def _entry(self, at: int) -> int:
        entry = _ENTRY.unpack_from(self._view, at)
        if entry[0] != b"PK\x01\x02":
            raise DumpError(f"the directory of the torch file is damaged at byte {at}")
        packed, size, header = entry[8], entry[9], entry[16]
        begin = at + _ENTRY.size
        middle = begin + int(entry[10])
        end = middle + int(entry[11]) + int(entry[12])
        name = bytes(self._view[begin:middle]).decode("utf-8")
        if _FULL in {packed, size, header}:
            size, packed, header = _zip64(bytes(self._view[middle : middle + entry[11]]), size, packed, header)
        if name in self.names:
            raise DumpError(f"the torch file has two records {name[:80]!r}")
        self.names[name] = _Record(header, packed, size, entry[4])
        return end


def _zip64(extra: bytes, *numbers: int) -> list[int]:
    """Size, packed size and place; those that do not fit in four bytes are in the extra field 1, in this order."""
    at, wide = 0, b""
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        if kind == 1:
            wide = extra[at + 4 : at + 4 + length]
        at += 4 + length
    found, place = [], 0
    for number in numbers:
        if number == _FULL:
            (number,) = struct.unpack_from("<Q", wide, place)  # noqa: PLW2901
            place += 8
        found.append(number)
    return found
