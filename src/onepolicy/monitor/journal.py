"""`steps.jsonl`: one line for each step, in a file that a killed training leaves readable."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from onepolicy.errors import RunError
from onepolicy.records.files import disk_errors
from onepolicy.records.step import StepRecord

HISTORY = 256
"""steps that a resumed training looks back on"""
_TAIL = 4 << 20
"""bytes in which the last line's beginning is looked for"""


class Journal:
    """Appends to a file that is there. One that was removed is an error, and is not begun anew."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.note = ""
        """what was wrong with the file when it was opened"""
        if path.is_symlink():
            raise RunError(f"{path}: is a link, and would lead out of the run. Give the monitor a folder of its own.")
        with disk_errors(path):
            path.touch()
            self._mend_last_line()

    def append(self, record: StepRecord) -> None:
        """Raises: RunError if the line cannot be written whole; then nothing of it is left."""
        line = record.model_dump_json().encode() + b"\n"
        with disk_errors(self.path):
            handle = os.open(self.path, os.O_WRONLY | os.O_APPEND)
            try:
                _write_whole(handle, line)
            finally:
                os.close(handle)

    def records(self) -> Iterator[StepRecord]:
        """All steps in the order in which they were written, one in memory. Raises: RunError if a line is no step."""
        with disk_errors(self.path), self.path.open("rb") as file:
            for line in file:
                yield self._record(line)

    def _record(self, line: bytes) -> StepRecord:
        try:
            return StepRecord.model_validate_json(line)
        except ValidationError as error:
            raise RunError(
                f"{self.path}: holds a line that is no step ({str(error.errors()[0]['msg'])[:120]}): {line[:60]!r}. "
                "Remove the line, or give the monitor another folder."
            ) from error

    def _mend_last_line(self) -> None:
        """A process that was killed may have left half a line: it is completed if it is a step, else dropped."""
        with self.path.open("r+b") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL))
            tail = file.read()
            rest = tail[tail.rfind(b"\n") + 1 :]
            if not rest:
                return
            try:
                StepRecord.model_validate_json(rest)
            except ValidationError:
                file.truncate(size - len(rest))
                self.note = f"{self.path}: the last line was cut off after {len(rest)} bytes and was dropped"
            else:
                file.write(b"\n")
                self.note = f"{self.path}: the last line lacked its end and was completed"


def _write_whole(handle: int, line: bytes) -> None:
    before = os.fstat(handle).st_size
    try:
        written = os.write(handle, line)
        while written < len(line):
            written += os.write(handle, line[written:])
    except OSError:
        os.ftruncate(handle, before)
        raise
