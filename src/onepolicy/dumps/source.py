"""Bytes of a recorded file: from a disk or a URL, unpacked on the way, as a stream or as one piece.

What is packed is seen from its first bytes, not from its name. Every failure of disk, network or packing is a DumpError
with the file's name.
"""

from __future__ import annotations

import mmap
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from onepolicy.errors import DumpError

CHUNK = 1 << 22
"""bytes read at once: far above the cost of a call, far below any memory"""
HEAD = 1 << 16
"""bytes that say what a file is"""
FREE_BYTES = 256 << 20
"""unpacked before the ratio is looked at: as much memory as every machine has"""
MAX_RATIO = 500
"""unpacked bytes for each stored one. JSONL of tokens and logprobs packs 3 to 15 times; a mask of ones packs about 1000
times, but no recording is all mask"""
MAX_WHOLE = 8 << 30
"""bytes of a packed or remote file that must be in memory at once; a file on disk is mapped and has no limit"""
MAPPED = 1 << 30
"""bytes from which on a plain file is mapped; below, it is read, since a mapped file that a training overwrites
meanwhile ends the process"""
PACKINGS = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
"""first bytes -> name of the packing, as pyarrow calls it"""


class Readable(Protocol):
    """What is needed of a stream."""

    def read(self, size: int = -1, /) -> bytes:
        """At most `size` bytes; none at the end."""

    def close(self) -> None:
        """Lets go of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Whole lines of a file, one after the other."""

    start: int
    """bytes before it"""
    end: int
    """bytes up to the end of its last line"""
    lines_before: int


class Source:
    """One stored file: a path, or a URL that fsspec opens."""

    def __init__(self, location: str) -> None:
        self.location = location

    @cached_property
    def _remote(self) -> tuple[Any, str] | None:
        """File system and path inside of it; None of a plain path."""
        if not is_url(self.location):
            return None
        import fsspec  # type: ignore[import-untyped]  # noqa: PLC0415

        with failures(self.location):
            found: tuple[Any, str] = fsspec.core.url_to_fs(self.location)
        return found

    @cached_property
    def size(self) -> int:
        """Bytes as stored; 0 if the server does not say."""
        with failures(self.location):
            if self._remote is None:
                return Path(self.location).stat().st_size
            fs, path = self._remote
            return int(fs.info(path).get("size") or 0)

    @cached_property
    def packing(self) -> str | None:
        """`gzip`, `zstd` or None."""
        with failures(self.location), self.stored() as stream:
            head = stream.read(4)
        return next((name for magic, name in PACKINGS.items() if head.startswith(magic)), None)

    def stored(self) -> Any:
        """The bytes as stored, as an open file."""
        with failures(self.location):
            if self._remote is None:
                return Path(self.location).open("rb")
            fs, path = self._remote
            return fs.open(path, "rb")

    @property
    def is_plain(self) -> bool:
        """Whether it lies on this machine as it is, so that it can be read from any place."""
        return self._remote is None and self.packing is None

    @contextmanager
    def stream(self, position: Callable[[int], None] | None = None, part: Part | None = None) -> Iterator[Readable]:
        """The bytes of the file, unpacked. `position` hears how many stored bytes were read so far.

        part: of a plain file; its bytes alone.
        """
        packing = self.packing
        counted = _Counted(self.stored(), position, self.location)
        try:
            if part is not None:
                assert self.is_plain, "no other can be read from any place"
                yield _Within(counted.moved(part.start), part, self.location)
                return
            yield counted if packing is None else _Unpacked(counted, packing, self.location)
        finally:
            counted.close()

    def head(self) -> bytes:
        """The first bytes, unpacked."""
        with self.stream() as stream:
            return stream.read(HEAD)

    def whole(self, position: Callable[[int], None] | None = None) -> bytes | mmap.mmap:
        """All bytes, unpacked; a large plain file is mapped, so that what nobody looks at takes no memory."""
        if self._remote is None and self.packing is None and self.size > MAPPED:
            with failures(self.location), Path(self.location).open("rb") as file:
                return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        with self.stream(position) as stream:
            return b"".join(chunks(stream, MAX_WHOLE, self.location))

    def searchable(self) -> Any:
        """What pyarrow opens to read at any place: a path, a remote file, or the unpacked bytes."""
        if self.packing is not None:
            import pyarrow as pa  # noqa: PLC0415

            return pa.BufferReader(self.whole())
        return self.location if self._remote is None else self.stored()

    def beside(self, name: str) -> bool:
        """Whether there is a file of this name in the same folder."""
        with failures(self.location):
            if self._remote is None:
                return (Path(self.location).parent / name).exists()
            fs, path = self._remote
            return bool(fs.exists(f"{path.rpartition('/')[0]}/{name}"))


def chunks(stream: Readable, limit: int, name: str) -> Iterator[bytes]:
    """The stream in pieces. Raises: DumpError beyond `limit` bytes."""
    total = 0
    while chunk := stream.read(CHUNK):
        total += len(chunk)
        if total > limit:
            raise DumpError(
                f"{name}: holds more than {limit >> 30} GiB that must be in memory at once. Unpack or split it."
            )
        yield chunk


class _Counted:
    """A file that tells how far it was read. pyarrow reads from it."""

    closed = False

    def __init__(self, file: Any, position: Callable[[int], None] | None, name: str) -> None:
        self._file, self._position, self._name = file, position, name
        self.count = 0

    def read(self, size: int = -1, /) -> bytes:
        with failures(self._name):
            found: bytes = self._file.read(size)
        self.count += len(found)
        if self._position is not None:
            self._position(self.count)
        return found

    def moved(self, to: int) -> _Counted:
        """Itself, after what is before a place."""
        with failures(self._name):
            self._file.seek(to)
        self.count = to
        return self

    def close(self) -> None:
        self._file.close()


class _Within:
    """The bytes of one part, out of the open file."""

    def __init__(self, stream: _Counted, part: Part, name: str) -> None:
        self._stream, self._left, self._name = stream, part.end - part.start, name

    def read(self, size: int = -1, /) -> bytes:
        """At most `size` bytes. Raises: DumpError if the file ends before the part does."""
        wanted = self._left if size < 0 else min(size, self._left)
        found: bytes = self._stream.read(wanted) if wanted else b""
        if wanted and not found:
            raise DumpError(
                f"{self._name}: became {self._left} bytes shorter, or more, while it was read. Wait until nothing "
                "writes to it."
            )
        self._left -= len(found)
        return found

    def close(self) -> None:
        """Lets go of the file."""
        self._stream.close()


class _Unpacked:
    """Unpacks while reading, and stops at a bomb."""

    def __init__(self, stored: _Counted, packing: str, name: str) -> None:
        import pyarrow as pa  # noqa: PLC0415

        self._stored, self._packing, self._name = stored, packing, name
        self._stream = pa.CompressedInputStream(pa.PythonFile(stored, mode="r"), packing)
        self._count = 0

    def read(self, size: int = -1, /) -> bytes:
        try:
            found: bytes = self._stream.read(size if size >= 0 else MAX_WHOLE)
        except (OSError, ValueError) as error:  # what pyarrow says of damage
            raise DumpError(
                f"{self._name}: its {self._packing} data is damaged or cut short after {self._count} bytes ({error}). "
                "Copy it again; if it is still being written, wait."
            ) from error
        self._count += len(found)
        if self._count > FREE_BYTES and self._count > MAX_RATIO * self._stored.count:
            raise DumpError(
                f"{self._name}: {self._stored.count} stored bytes unpack to more than {self._count}, above {MAX_RATIO} "
                "times as many, which no recording does. If it is one, unpack it yourself and import the result."
            )
        return found

    def close(self) -> None:
        self._stored.close()


@contextmanager
def failures(name: str) -> Iterator[None]:
    """What disk and network raise -> DumpError with the file's name."""
    try:
        yield
    except DumpError:
        raise
    except FileNotFoundError as error:
        raise DumpError(f"{name}: there is no such file") from error
    except ImportError as error:
        raise DumpError(f"{name}: fsspec needs a package to open it: {error}") from error
    except _network_errors() as error:
        raise DumpError(f"{name}: cannot be read: {error}") from error


def _network_errors() -> tuple[type[Exception], ...]:
    """OSError, and what the clients raise that fsspec has loaded; ValueError is its word for a URL it does not know."""
    found: list[type[Exception]] = [OSError, ValueError]
    for module, name in (
        ("aiohttp", "ClientError"),
        ("botocore.exceptions", "BotoCoreError"),
        ("gcsfs.retry", "HttpError"),
    ):
        kind = getattr(sys.modules.get(module), name, None)
        if isinstance(kind, type) and issubclass(kind, Exception):
            found.append(kind)
    return tuple(found)


def is_url(location: str) -> bool:
    """Whether fsspec opens it, and not the disk."""
    return "://" in location
