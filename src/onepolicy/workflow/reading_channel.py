"""What a reading process sends to the one that started it: the blocks of one part, and what ended the reading of it.

It is a pickle, and the arrays behind it. It comes from this module in a process of our own, over a pipe of nobody else:
no file that is read has a hand in it.
"""

from __future__ import annotations

import contextlib
import fcntl
import pickle
import struct
from dataclasses import dataclass
from typing import IO

import numpy as np

from onepolicy.dumps.block import RecordedBlock
from onepolicy.errors import AlignmentError, DumpError

PIPE_BYTES = 1 << 20
"""that wait to be received, as many as Linux lets anyone have: sixteen times fewer turns than with what a pipe has"""
_COUNT = struct.Struct("<q")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartRead:
    """What came of one part: its blocks, and what ended the reading after them."""

    blocks: list[RecordedBlock]
    error: DumpError | AlignmentError | None = None


def widen(pipe: IO[bytes]) -> None:
    """Let more wait in a pipe, where the system can."""
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        with contextlib.suppress(OSError):  # all that this user may have is in use
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)


def send(stream: IO[bytes], read: PartRead) -> None:
    """Write what came of one part. Raises: BrokenPipeError if the parent is gone."""
    buffers: list[pickle.PickleBuffer] = []
    pieces: list[bytes | memoryview] = [pickle.dumps(read, protocol=5, buffer_callback=buffers.append)]
    pieces += [buffer.raw() for buffer in buffers]
    stream.write(b"".join(map(_COUNT.pack, (len(pieces), *map(len, pieces)))))
    for piece in pieces:
        stream.write(piece)
    stream.flush()


def receive(stream: IO[bytes]) -> PartRead:
    """What `send` wrote. Raises: EOFError if the other process ended before all of it was there."""
    (count,) = _COUNT.unpack(_exactly(stream, _COUNT.size))
    lengths = struct.unpack(f"<{count}q", _exactly(stream, count * _COUNT.size))
    said, *buffers = (_exactly(stream, length) for length in lengths)
    found = pickle.loads(said, buffers=buffers)  # noqa: S301 - see above
    assert isinstance(found, PartRead), "nothing else is sent"
    return found


def _exactly(stream: IO[bytes], count: int) -> memoryview:
    buffer = np.empty(count, dtype=np.uint8).data  # which is not filled with zeros first
    if stream.readinto(buffer) < count:  # type: ignore[attr-defined]  # a buffered pipe reads until its end
        raise EOFError
    return buffer
