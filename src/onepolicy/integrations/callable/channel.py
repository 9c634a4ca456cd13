"""Messages between onepolicy and the ranks it starts: a JSON header and arrays, over a local socket."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

_LENGTHS = struct.Struct("!QQ")
"""bytes of the header, bytes of the arrays"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Frame:
    """One message."""

    header: dict[str, Any]
    arrays: Sequence[npt.NDArray[Any]] = field(default_factory=list)
    """1-d, all of one dtype"""


class Channel:
    """One end of a socket pair."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end

    def send(self, frame: Frame) -> None:
        """Send all of it. Raises OSError if the other end is gone, TimeoutError if it does not read."""
        dtype = frame.arrays[0].dtype.str if frame.arrays else "<f8"
        layout = {"dtype": dtype, "lengths": [len(array) for array in frame.arrays]}
        head = json.dumps({"header": frame.header, **layout}).encode()
        blob = b"".join(array.tobytes() for array in frame.arrays)
        self.socket.sendall(_LENGTHS.pack(len(head), len(blob)) + head + blob)

    def receive(self) -> Frame:
        """Wait for the next message. Raises EOFError if the other end is gone."""
        head_length, blob_length = _LENGTHS.unpack(self._exactly(_LENGTHS.size))
        head = json.loads(self._exactly(head_length))
        flat = np.frombuffer(self._exactly(blob_length), dtype=np.dtype(head["dtype"]))
        ends = np.cumsum(head["lengths"], dtype=np.int64)
        return Frame(header=head["header"], arrays=np.split(flat, ends[:-1]) if len(ends) else [])

    def close(self) -> None:
        """The other end sees the end of the file."""
        self.socket.close()

    def _exactly(self, count: int) -> bytes:
        parts, missing = [], count
        while missing:
            try:
                part = self.socket.recv(min(missing, 1 << 20))
            except ConnectionError as error:
                raise EOFError from error
            if not part:
                raise EOFError
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)
