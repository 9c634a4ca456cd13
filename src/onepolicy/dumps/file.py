"""One file of a dump: what kind it is, from its content, and its objects, read without running anything."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from onepolicy.dumps.expand import located, natural
from onepolicy.dumps.lines import BOM, Numbered, file_objects, line_objects
from onepolicy.dumps.parts import parts_of
from onepolicy.dumps.source import Part, Source
from onepolicy.dumps.stored import Global, Opaque, StoredTensor
from onepolicy.errors import DumpError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from onepolicy.dumps.row_groups import CheckedParquet

__all__ = ["DumpFile", "Global", "Kind", "Opaque", "StoredTensor", "expand", "natural"]

Kind = Literal["jsonl", "json", "parquet", "pickle", "torch", "numpy", "unknown"]

LEGACY_MAGIC = b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""the number that begins what torch.save wrote before its version 1.6"""
_UNREAD = object()


class DumpFile:
    """A file that a framework recorded: a path, or a URL that fsspec opens; packed by gzip or zstd, or not."""

    def __init__(self, location: str | Path, *, label: str = "", position: Callable[[int], None] | None = None) -> None:
        self.location = str(location)
        self.name = self.location
        """as messages name it"""
        self.label = label or Path(self.location).name.split(".")[0]
        """unique within an import; the start of rollout ids"""
        self.position = position
        """hears the bytes of the stored file that were read so far, as they are read"""
        self.part: Part | None = None
        """the lines of a JSONL file that `objects` and `numbered_objects` read; None: all"""
        self.source = Source(self.location)
        self._first: Any = _UNREAD
        self._loaded: Any = _UNREAD
        self._parquet: CheckedParquet | None = None

    def __repr__(self) -> str:
        return f"DumpFile({self.location!r})"

    @property
    def size(self) -> int:
        """Bytes as stored; 0 if a server does not say."""
        return self.source.size

    @cached_property
    def kind(self) -> Kind:
        """From the content, never from the name; `unknown` of a file that is empty or of no kind that is read.

        Raises: DumpError if it cannot be opened or unpacked.
        """
        return kind_of(self.source.head())

    def objects(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """(where, object) of a JSON or JSONL file, one after the other: ("FILE, line 3", {...}).

        NaN and Infinity are read. A JSON file that is no JSONL gives its one object, or those of its array
        ("FILE, entry 3"), and is in memory at once.
        Raises: DumpError for a line that is no JSON object, with file and line, and of other kinds.
        """
        return ((where, found) for _, where, found in self.numbered_objects())

    def numbered_objects(self) -> Iterator[Numbered]:
        """(row, where, object) as `objects` gives them: the number of the line or of the entry from 0 on.

        Raises: DumpError as `objects`.
        """
        if self.kind not in {"json", "jsonl"}:
            raise DumpError(f"{self.name}: is no JSON (content: {self.kind})")
        with self.source.stream(self.position, self.part) as stream:
            if self.kind == "json":
                yield from file_objects(stream, self.name)
            else:
                before = 0 if self.part is None else self.part.lines_before
                yield from line_objects(stream, self.name, before=before)

    @property
    def is_begun(self) -> bool:
        """Whether a part before this one was read; what is said once of a file is said of its first part."""
        return self.part is not None and self.part.start > 0

    def parts(self, least: int) -> Iterator[Part]:
        """The lines of a plain JSONL file, in parts of at least so many bytes. Raises: DumpError if it is not there."""
        assert self.source.is_plain, "no other can be read from any place"
        with self.source.stored() as stream:
            yield from parts_of(stream, self.name, least)

    def first(self) -> dict[str, Any] | None:
        """The first object of a JSON or JSONL file, for recognition; None of other kinds. Kept until `drop`."""
        if self._first is _UNREAD:
            told, part, self.position, self.part = self.position, self.part, None, None
            try:
                is_json = self.kind in {"json", "jsonl"}
                self._first = next((found for _, found in self.objects()), None) if is_json else None
            finally:
                self.position, self.part = told, part
        found: dict[str, Any] | None = self._first
        return found

    def parquet(self) -> pq.ParquetFile:
        """The open Parquet file, whose claims fit its size. Kept until `drop`. Raises: DumpError if it is damaged.

        Reading its pages can still fail; `batches` turns that into a DumpError. Do not ask its metadata for the
        columns of a row group: pyarrow ends the process on some damaged files.
        """
        return self._checked().file

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The rows of a Parquet file, as many at a time as keep memory flat. Raises: DumpError if it is damaged."""
        yield from self._checked().batches(columns, position=self.position)

    def _checked(self) -> CheckedParquet:
        if self._parquet is None:
            from onepolicy.dumps.row_groups import opened  # noqa: PLC0415

            if self.kind != "parquet":
                raise DumpError(f"{self.name}: is no Parquet (content: {self.kind})")
            self._parquet = opened(self.source.searchable(), name=self.name, size=self.size)
        return self._parquet

    def schema(self) -> pa.Schema | None:
        """The Arrow schema of a Parquet file; None of other kinds. Raises: DumpError if it is damaged."""
        return self.parquet().schema_arrow if self.kind == "parquet" else None

    def loaded(self) -> object:
        """What a pickle, torch or .npy file holds: dicts, lists, numbers, strings, numpy arrays, StoredTensor, Opaque.

        Nothing of the file runs. torch.Size is a tuple, torch.device a string, torch.dtype a `Global`, a numpy scalar
        a number, a TensorDict an `Opaque` with its entries in `state["_tensordict"]`, a file inside the file (verl's
        DataProto, tensors in a plain pickle) its content. Tensors are views of the file's bytes. Kept until `drop`.
        Raises: DumpError if it is damaged, asks for something else than data, or is of another kind.
        """
        if self._loaded is _UNREAD:
            if self.kind not in {"pickle", "torch", "numpy"}:
                raise DumpError(f"{self.name}: is no pickle, torch or numpy file (content: {self.kind})")
            self._loaded = self.inner(self.source.whole(self.position))
            if self.position is not None:
                self.position(self.size)
        return self._loaded

    def inner(self, data: Any) -> object:
        """What bytes found inside of this file hold, if they are a pickle, torch or .npy file themselves.

        Raises: DumpError as `loaded`.
        """
        from onepolicy.dumps.torch_archive import unpickled  # noqa: PLC0415

        try:
            return unpickled(data)
        except DumpError as error:
            raise DumpError(f"{self.name}: {error}") from error

    def drop(self) -> None:
        """Forgets what `first`, `loaded` and `parquet` keep."""
        if self._parquet is not None:
            self._parquet.file.close()
        self._first, self._loaded, self._parquet = _UNREAD, _UNREAD, None

    def beside(self, name: str) -> bool:
        """Whether a file of this name lies in the same folder."""
        return self.source.beside(name)


def kind_of(head: bytes) -> Kind:
    """What a file is that begins with these bytes, unpacked."""
    for magic, kind in _MAGIC.items():
        if head.startswith(magic):
            return kind
    if head[:1] == b"\x80" and head[1:2] in {b"\x02", b"\x03", b"\x04", b"\x05"}:
        return "torch" if LEGACY_MAGIC in head[:32] else "pickle"
    if head.startswith(b"PK\x03\x04"):
        return "torch" if b"data.pkl" in head else "unknown"
    text = head.removeprefix(BOM).lstrip()
    if text.startswith(b"["):
        return "json"
    return _json_kind(text) if text.startswith(b"{") else "unknown"


_MAGIC: dict[bytes, Kind] = {
    b"PAR1": "parquet",
    b"\x93NUMPY": "numpy",
}


def _json_kind(text: bytes) -> Kind:
    """JSONL has an object in each line; an object over many lines has a first one that does not end it.

    A first line that goes on beyond the head is taken as JSONL: an object in one line is read the same both ways.
    """
    line, end, rest = text.partition(b"\n")
    if not end or line.rstrip().endswith(b"}") or rest.startswith(b"{"):
        return "jsonl"
    return "json"


def expand(paths: Iterable[str | Path]) -> list[DumpFile]:
    """Files, folders with all below, globs, and URLs of these -> files in the order of the numbers in their names.

    Hidden and unfinished files of a folder are left out; a file that is named twice is read once.
    Raises: DumpError if one of the paths leads to nothing.
    """
    return [DumpFile(location, label=label) for location, label in located(paths)]
