"""A file of lines in parts, so that several processes can read it: each part is whole lines with their numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from onepolicy.dumps.source import Part, failures

PART_BYTES = 12 << 20
"""of one part at least: a tenth of a second to read, and a few megabytes as arrays"""
SCAN = 1 << 18
"""bytes looked at together: the cache of a core holds them"""
_END = ord("\n")


def parts_of(stream: BinaryIO, name: str, least: int = PART_BYTES) -> Iterator[Part]:
    """The parts of a file from its start, each of `least` bytes or more but the last; a longer line is in one part.

    Reads the file once, as far as it was asked for parts. Where it is cut depends on nothing but the file, so that
    what comes of it is the same to the last digit on every machine.
    """
    buffer = bytearray(SCAN)
    view = np.frombuffer(buffer, dtype=np.uint8)
    start = at = lines = lines_before = 0
    while count := _read_into(stream, buffer, name):
        at += count
        lines += int(np.count_nonzero(view[:count] == _END))  # several times as fast as the buffer's own `count`
        last = buffer.rfind(b"\n", 0, count) if at - start >= least else -1
        if last >= 0:
            end = at - count + last + 1
            yield Part(start=start, end=end, lines_before=lines_before)
            start, lines_before = end, lines
    if at > start:
        yield Part(start=start, end=at, lines_before=lines_before)


def _read_into(stream: BinaryIO, buffer: bytearray, name: str) -> int:
    with failures(name):
        return stream.readinto(buffer)  # type: ignore[attr-defined, no-any-return]  # which every open file has
