"""`watch.jsonl`: one row of a history a line, appended probe after probe."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from onepolicy.records.files import disk_errors
from onepolicy.records.past import PastRun
from onepolicy.records.verdict import Status

LINES = "watch.jsonl"


def append_line(file: Path, row: PastRun) -> None:
    """Add a row and flush it to disk; after a line that a kill cut off it begins a new one. Raises: RunError."""
    with disk_errors(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("ab+") as out:
            cut = out.tell() > 0 and not _ends_a_line(file)
            out.write(f"{chr(10) if cut else ''}{row.model_dump_json()}\n".encode("utf-8", "backslashreplace"))
            out.flush()
            os.fsync(out.fileno())


def read_lines(file: Path) -> Iterator[PastRun]:
    """The rows; a line that is none is a row that says so."""
    with disk_errors(file):
        lines = file.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield PastRun.model_validate_json(line)
        except ValidationError:
            yield PastRun(
                status=Status.UNKNOWN,
                sentence=f"Unknown: {file}, line {number}: is damaged; a probe was cut off there, or the file changed.",
            )


def _ends_a_line(file: Path) -> bool:
    with file.open("rb") as read:
        read.seek(-1, os.SEEK_END)
        return read.read(1) == b"\n"
