"""Files, folders, globs and URLs of these -> the files of a dump, in the order of the numbers in their names."""

from __future__ import annotations

import glob
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from onepolicy.dumps.source import failures, is_url
from onepolicy.errors import DumpError

UNFINISHED = (".tmp", ".part", ".partial", ".incomplete", ".lock", ".swp", "~")
"""ends of names that programs give to what they have not finished"""
MARKERS = frozenset({"STABLE", "_SUCCESS"})
"""empty files that say that a folder is complete; `DumpFile.beside` asks for them"""
_SUFFIXES = re.compile(r"(\.[A-Za-z][A-Za-z0-9]*)+$")


@dataclass(frozen=True, slots=True)
class Found:
    """A file, and its path below what the user gave."""

    location: str
    below: str


def located(paths: Iterable[str | Path]) -> list[tuple[str, str]]:
    """(location, label) of every file, each file once; labels are unique.

    Raises: DumpError if one of the paths leads to nothing.
    """
    found: dict[str, Found] = {}
    for path in map(str, paths):
        files = list(_of_url(path) if is_url(path) else _of_path(path))
        if not files:
            raise DumpError(f"{path}: there is no such file, or no file in it. Name a file, a folder, a glob or a URL.")
        for file in sorted(files, key=lambda file: natural(file.below)):
            found.setdefault(file.location, file)
    files = list(found.values())
    return list(zip([file.location for file in files], labels(files), strict=True))


def natural(name: str) -> list[tuple[int, str]]:
    """A key that orders numbers in names as numbers: step2 before step10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def labels(files: list[Found]) -> list[str]:
    """The path below what the user gave, without suffixes; more of the path where that is not unique."""
    found = [_without_suffixes(file.below) for file in files]
    for more in (lambda file: file.below, lambda file: _without_suffixes(file.location), lambda file: file.location):
        counts = Counter(found)
        found = [label if counts[label] == 1 else more(file) for label, file in zip(found, files, strict=True)]
    return found


def _without_suffixes(path: str) -> str:
    folder, slash, name = path.rpartition("/")
    return folder + slash + (_SUFFIXES.sub("", name) or name)


def _of_path(given: str) -> Iterator[Found]:
    path = Path(given).expanduser()
    with failures(given):
        if path.is_file():
            yield Found(str(path), path.name)
        elif path.is_dir():
            yield from _in_folder(path, path)
        elif glob.has_magic(given):
            parent = _fixed_part(path)
            for match in map(Path, glob.iglob(str(path), recursive=True)):
                if match.is_dir():
                    yield from _in_folder(match, parent)
                elif match.is_file():
                    yield Found(str(match), match.relative_to(parent).as_posix())


def _in_folder(folder: Path, top: Path) -> Iterator[Found]:
    """All recordings below, links followed once. Raises: OSError for a folder that may not be read; DumpError."""
    seen: set[tuple[int, int]] = set()
    for where, below, names in os.walk(folder, onerror=_raise, followlinks=True):
        known = os.stat(where)
        below[:] = [] if (known.st_dev, known.st_ino) in seen else sorted(below)
        if (known.st_dev, known.st_ino) in seen:
            continue
        seen.add((known.st_dev, known.st_ino))
        for file in map(Path(where).joinpath, names):
            if not is_recording(file.relative_to(folder).as_posix()):
                continue
            if not file.is_file():
                raise DumpError(f"{file}: is a broken link or no regular file. Remove it, or name the files that are.")
            yield Found(str(file), file.relative_to(top).as_posix())


def _raise(error: OSError) -> None:
    raise error


def _fixed_part(path: Path) -> Path:
    """The folders before the first one with a wildcard."""
    plain = [parent for parent in path.parents if not glob.has_magic(str(parent))]
    return plain[0] if plain else Path()


def _of_url(url: str) -> Iterator[Found]:
    import fsspec  # type: ignore[import-untyped]  # noqa: PLC0415

    with failures(url):
        fs, path = fsspec.core.url_to_fs(url)
        if fs.isfile(path):
            yield Found(url, path.rpartition("/")[2])
            return
        if glob.has_magic(path):
            top = str(_fixed_part(Path(path)))
            files = [file for match in fs.glob(path) for file in ([match] if fs.isfile(match) else fs.find(match))]
        else:
            top, files = path, fs.find(path) if fs.isdir(path) else []
        for file in files:
            below = file.removeprefix(top.rstrip("/")).lstrip("/")
            if is_recording(below):
                yield Found(fs.unstrip_protocol(file), below)


def is_recording(below: str) -> bool:
    """Whether a file in a folder is neither hidden, nor unfinished, nor a marker."""
    name = below.rpartition("/")[2]
    hidden = any(part.startswith(".") for part in below.split("/"))
    return not hidden and not name.endswith(UNFINISHED) and name not in MARKERS
