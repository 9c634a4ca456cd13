"""Files that are whole or absent: written under a temporary name, flushed to disk, renamed."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from onepolicy.errors import RunError


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn an error of the file system into one that says which file and what to do."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise RunError(
                f"{path}: the disk is full. What was finished before is kept; make room and run the same command "
                "again with --resume."
            ) from error
        reason = error.strerror or str(error)
        raise RunError(f"{path}: {reason}. Check that the folder exists and may be written to.") from error


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a temporary file beside `path`, flush it to disk, then rename it to `path`."""
    with disk_errors(path):
        if path.exists() and not path.is_file():
            raise RunError(f"{path}: is no regular file, and would be replaced by one. Give the path of a file.")
        _make_folder(path.parent)
        temporary = path.parent / f".{path.name}.{uuid4().hex[:12]}.tmp"
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        try:
            write(temporary)
            _flush(temporary)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        _flush(path.parent)


def is_temporary(path: Path) -> bool:
    """Whether a file is one that `write_atomically` has not finished."""
    return path.name.startswith(".") and path.name.endswith(".tmp")


def write_text_atomically(path: Path, text: str) -> None:
    """Write `text` as UTF-8; a lone surrogate is written as an escape, never lost."""
    data = text.encode("utf-8", errors="backslashreplace")
    write_atomically(path, lambda temporary: _write_bytes(temporary, data))


def write_bytes_atomically(path: Path, data: bytes) -> None:
    """Write `data`."""
    write_atomically(path, lambda temporary: _write_bytes(temporary, data))


@contextmanager
def one_writer(path: Path, *, shared: bool = False) -> Iterator[None]:
    """Hold `path` as a lock for as long as the block runs; the system lets go of it if the process dies.

    shared: others may hold it too, as long as they share it.
    """
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise RunError(
                f"{path.parent}: another process is writing this part of the run. Wait for it, end it, or give each "
                "process a shard of its own (--shard 1/2, --shard 2/2)."
            ) from error
        except OSError as error:
            raise RunError(
                f"{path}: this file system gives no locks ({error.strerror}), so two writers could not be kept apart. "
                "Write the run on a local disk and copy it afterwards."
            ) from error
        yield
    finally:
        os.close(handle)


def _write_bytes(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _make_folder(path: Path) -> None:
    """Create a folder and what is missing above it, each flushed into its parent."""
    if not path.exists():
        _make_folder(path.parent)
        path.mkdir(exist_ok=True)
        _flush(path.parent)
