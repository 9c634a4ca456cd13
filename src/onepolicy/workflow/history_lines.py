"""`watch.jsonl`: one row of a history a line, appended probe after probe."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime
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
    """The rows; a line that is none is a row that says so, of the time of a line beside it."""
    with disk_errors(file):
        lines = file.read_bytes().split(b"\n")
        written = datetime.fromtimestamp(file.stat().st_mtime, UTC)
    found = [_row(line) or _damaged(file, number) for number, line in enumerate(lines, start=1) if line.strip()]
    times = [row.time for row in found if row.time]
    time = times[0] if times else written
    for i, row in enumerate(found):
        time = row.time or (written if i + 1 == len(found) else time)
        yield row.model_copy(update={"time": time})


def _row(line: bytes) -> PastRun | None:
    try:
        return PastRun.model_validate_json(line)
    except ValidationError:
        return None


def _damaged(file: Path, number: int) -> PastRun:
    return PastRun(
        status=Status.UNKNOWN,
        sentence=f"Unknown: {file}, line {number}: is damaged; a probe was cut off there, or the file changed.",
    )


def _ends_a_line(file: Path) -> bool:
    with file.open("rb") as read:
        read.seek(-1, os.SEEK_END)
        return read.read(1) == b"\n"
