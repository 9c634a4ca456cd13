"""Runs at a URL that fsspec opens, as files here: the small ones of all, and all of the few that are looked into."""

from __future__ import annotations

import os
import re
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any

from onepolicy.dumps.source import failures
from onepolicy.errors import DumpError
from onepolicy.workflow.behave_kept import BEHAVIOUR
from onepolicy.workflow.history_lines import LINES
from onepolicy.workflow.progress import Progress

_SMALL = re.compile(
    r"(?:^|/)(?:manifest\.json|readings/[^/]+/reading\.json|judgements/default/(?:verdicts|limits|gate)\.json"
    rf"|{re.escape(BEHAVIOUR)}|{re.escape(LINES)})$"
)
"""files that a row of a history is made of"""
_LARGEST = 1 << 24
"""bytes of such a file; a run's are a few hundred kilobytes"""


class Mirror:
    """Copies files of a URL into a folder under the same relative paths; nothing is written to the URL."""

    def __init__(self, url: str, folder: Path, *, progress: Progress) -> None:
        import fsspec  # type: ignore[import-untyped]  # noqa: PLC0415

        self._url, self._folder, self._progress = url, folder, progress
        with failures(url):
            self._fs, self._top = fsspec.core.url_to_fs(url)
            self._files: dict[str, dict[str, Any]] = self._fs.find(self._top, detail=True)

    def take_small_files(self) -> None:
        """What the rows are made of, of every run, and the folders of all files."""
        for file in self._files:
            self._here(file).parent.mkdir(parents=True, exist_ok=True)
        wanted = [file for file in sorted(self._files) if _SMALL.search(self._below(file))]
        self._progress.start("fetching", len(wanted), "files")
        for file in wanted:
            size = int(self._files[file].get("size") or 0)
            if size > _LARGEST:
                raise DumpError(f"{self._url}: {self._below(file)} has {size:,} bytes, and is no file of a run.")
            self._take(file)
            self._progress.advance(1)

    def take_run(self, run: Path) -> None:
        """All of one run that is not here yet; `run` is where it lies in the folder."""
        below = run.relative_to(self._folder).as_posix()
        inside = [file for file in sorted(self._files) if self._below(file).startswith(f"{below}/")]
        missing = [file for file in inside if not (self._folder / self._below(file)).exists()]
        self._progress.start(f"fetching {below}", len(missing), "files")
        for file in missing:
            self._take(file)
            self._progress.advance(1)

    def _below(self, file: str) -> str:
        return file.removeprefix(self._top.rstrip("/")).lstrip("/")

    def _here(self, file: str) -> Path:
        below = PurePosixPath(self._below(file))
        if ".." in below.parts or below.is_absolute():
            raise DumpError(f"{self._url}: names a file {str(below)!r} that lies outside of it.")
        return self._folder / below

    def _take(self, file: str) -> None:
        here = self._here(file)
        with failures(file):
            here.write_bytes(self._fs.cat_file(file))
        changed = _changed(self._files[file])
        if changed is not None:
            os.utime(here, (changed, changed))


def _changed(info: dict[str, Any]) -> float | None:
    """When a file was last written, in seconds, where its file system says it."""
    for name in ("mtime", "LastModified", "last_modified", "updated", "created"):
        value = info.get(name)
        if isinstance(value, datetime):
            return value.timestamp()
        if isinstance(value, (int, float)):
            return float(value)
    return None
