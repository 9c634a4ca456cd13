"""The run directory: the only place where engines, measures and reports meet."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from onepolicy.errors import RunError, UsageError
from onepolicy.records.files import (
    disk_errors,
    is_temporary,
    one_writer,
    write_atomically,
    write_bytes_atomically,
    write_text_atomically,
)
from onepolicy.records.finding import Diagnosis
from onepolicy.records.looks import Looks, Seen
from onepolicy.records.manifest import FORMAT_VERSION, Imported, Manifest
from onepolicy.records.parquet import (
    READING_SCHEMA,
    ROLLOUT_SCHEMA,
    SPAN_SCHEMA,
    RolloutBlock,
    reading_table,
    rollout_block,
    rollout_rows,
    rollout_table,
    span_rows,
    span_table,
    top_table,
    write_parquet,
)
from onepolicy.records.reading import ReadingInfo, ReadingRow
from onepolicy.records.rollout import Rollout, Span
from onepolicy.records.stored import column_index, open_parquet, raw_json, read_json, read_row_group
from onepolicy.records.tables import ReportData
from onepolicy.records.verdict import Judgement

RowT = TypeVar("RowT")
_OF_EXTENSIONS = {"earlier_suites", "there_before"}
_OF_IMPORTS = {"imported", "planned_rollouts"}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,80}")


class Run:
    """A directory with rollouts, spans and readings. Judging never changes them.

    A part is named after the rollouts in it, so writing it twice gives one file, and the part of rollouts is written
    after its spans and readings: a rollout that is there is whole.
    """

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self.path = path
        self.manifest = manifest

    @classmethod
    def create(cls, path: Path, manifest: Manifest, *, resume: bool = False) -> Run:
        """Start a run, or go on with the one that was asked for in the same words.

        Raises: RunError if the folder holds something else, or a run and `resume` is not given.
        """
        with disk_errors(path):
            used = path.exists() and not _is_unused(path)  # before the manifest: another shard may just be writing it
            if (path / "manifest.json").exists():
                return cls._continue(path, manifest, resume=resume)
            if used:
                raise RunError(f"{path}: exists and is no run of onepolicy. Give another folder with --run.")
        run = cls(path, manifest)
        run._write_manifest()
        return run

    @classmethod
    def extend(cls, path: Path, manifest: Manifest) -> Run:
        """Let a run grow to the manifest's suite and number of rollouts; all else must be as it was asked for.

        Raises: RunError if there is no run, or one that asked for other than the suite and the number.
        """
        found = _read_manifest(path)
        grown = {"suite", "suite_hash", "planned_rollouts", *_OF_EXTENSIONS}
        _check_same(path, manifest, found, apart_from=grown, instead="Extend with the same request but for these")
        earlier = {**found.earlier_suites, found.suite: found.suite_hash}
        earlier = {name: digest for name, digest in earlier.items() if digest != manifest.suite_hash}
        run = cls(path, manifest.model_copy(update={"earlier_suites": earlier}))
        run._write_manifest()
        return run

    @classmethod
    def open(cls, path: Path) -> Run:
        """Read a run's manifest. Raises: RunError if it is absent, damaged, or of a later format version."""
        return cls(path, _read_manifest(path))

    @classmethod
    def _continue(cls, path: Path, manifest: Manifest, *, resume: bool) -> Run:
        found = _read_manifest(path)
        if not resume:
            raise RunError(f"{path}: a run is already there. Go on with it with --resume, or give another --run.")
        _check_same(path, manifest, found, apart_from=_OF_EXTENSIONS, instead="Resume with the same request")
        return cls(path, found)

    # -- rollouts -----------------------------------------------------------------------------------------------

    def write_rollouts(self, rollouts: Sequence[Rollout], spans: Sequence[Span]) -> None:
        """Add one part. The spans go first, so that a rollout that is there has its spans."""
        name = _part_name([r.rollout_id for r in rollouts])
        self._write_table(self.path / "spans" / name, span_table(spans))
        self._write_table(self.path / "rollouts" / name, rollout_table(rollouts))

    def write_tables(self, rollouts: pa.Table, spans: pa.Table, readings: Mapping[str, pa.Table]) -> None:
        """Add one part of everything at once, as tables; the rollouts go last."""
        name = _part_name(rollouts["rollout_id"].to_pylist())
        for reading, table in readings.items():
            self._write_table(self._reading_path(reading) / name, table)
        self._write_table(self.path / "spans" / name, spans)
        self._write_table(self.path / "rollouts" / name, rollouts)

    def write_reading_table(self, name: str, table: pa.Table) -> None:
        """Add one part to a reading."""
        self._write_table(self._reading_path(name) / _part_name(table["rollout_id"].to_pylist()), table)

    def imported(self, imported: Imported) -> None:
        """Write the manifest of a run that was read from files: what was read is what was planned."""
        self.manifest = self.manifest.model_copy(update={"imported": imported, "planned_rollouts": imported.used})
        self.complete()

    def complete(self) -> None:
        """Write the manifest's status "complete"."""
        self.manifest = self.manifest.model_copy(update={"status": "complete"})
        self._write_manifest()

    def rollout_ids(self) -> list[str]:
        """Ids of the rollouts that are there, in the order of the parts."""
        return self._column("rollouts", ROLLOUT_SCHEMA, "rollout_id")

    def trajectory_ids(self) -> list[str]:
        """The trajectory of each rollout, in the same order."""
        return self._column("rollouts", ROLLOUT_SCHEMA, "trajectory_id")

    def prompt_ids(self) -> list[str]:
        """The prompt of each rollout."""
        return self._column("rollouts", ROLLOUT_SCHEMA, "prompt_id")

    def rollouts(self) -> Iterator[Rollout]:
        """The rollouts, one row group in memory at a time."""
        for path, table in self._row_groups("rollouts", ROLLOUT_SCHEMA):
            yield from _named(path, rollout_rows(table))

    def rollout_blocks(self) -> Iterator[RolloutBlock]:
        """The rollouts as flat arrays, one row group at a time."""
        columns = ["rollout_id", "prompt_id", "tags", "token_ids", "sampled", "loss_mask"]
        for path, table in self._row_groups("rollouts", ROLLOUT_SCHEMA, columns=columns):
            yield next(_named(path, iter([rollout_block(table)])))

    def spans(self) -> Iterator[Span]:
        """The spans of all rollouts."""
        for _, table in self._row_groups("spans", SPAN_SCHEMA):
            yield from span_rows(table)

    # -- readings -----------------------------------------------------------------------------------------------

    def start_reading(self, info: ReadingInfo) -> None:
        """Create a reading, or check that the one of this name was asked for in the same words."""
        path = self._reading_path(info.name)
        if (path / "reading.json").exists():
            found = self.reading_info(info.name)
            _check_same_reading(path, found, info)
            return
        write_text_atomically(self._inside(path / "reading.json"), info.model_dump_json(indent=2) + "\n")

    def write_reading(self, name: str, rows: Sequence[ReadingRow]) -> None:
        """Add one part to a reading; its top lists go first."""
        part = _part_name([row.rollout_id for row in rows])
        folder = self._reading_path(name)
        if any(row.top is not None for row in rows):
            self._write_table(folder / part.replace("part-", "top-"), top_table(rows))
        self._write_table(folder / part, reading_table(rows))

    def reading_names(self) -> list[str]:
        """Names of the readings that the run has."""
        return sorted(path.parent.name for path in (self.path / "readings").glob("*/reading.json"))

    def reading_info(self, name: str) -> ReadingInfo:
        """What a reading is. Raises: RunError if the run has none of that name."""
        path = self._reading_path(name) / "reading.json"
        if not path.exists():
            names = ", ".join(self.reading_names()) or "none"
            raise RunError(f"{self.path}: there is no reading {name!r}. The run has: {names}.")
        info = read_json(path, ReadingInfo)
        if info.name != name:
            raise RunError(
                f"{path}: is of a reading {info.name!r}. The folder was copied or renamed; a reading is the work of an "
                f"engine, so score the run again: onepolicy score {self.path} --name {name}"
            )
        return info

    def reading_rollout_ids(self, name: str) -> set[str]:
        """Ids of the rollouts that a reading has scored."""
        return set(self._column(f"readings/{name}", READING_SCHEMA, "rollout_id"))

    def reading_digests(self, name: str) -> dict[str, str]:
        """Rollout id -> digest of the ids that a reading scored."""
        digests: dict[str, str] = {}
        for _, table in self._row_groups(f"readings/{name}", READING_SCHEMA, columns=["rollout_id", "digest"]):
            digests.update(zip(table["rollout_id"].to_pylist(), table["digest"].to_pylist(), strict=True))
        return digests

    def reading_parts(self, name: str) -> list[Path]:
        """The part files of a reading, in a fixed order."""
        return sorted(self._reading_path(name).glob("part-*.parquet"))

    def top_parts(self, name: str) -> list[Path]:
        """The files of a reading's top lists, in a fixed order."""
        return sorted(self._reading_path(name).glob("top-*.parquet"))

    def token_count(self) -> int:
        """Tokens in all rollouts, from the files' own statistics; nothing is read."""
        total = 0
        for path in sorted((self.path / "rollouts").glob("part-*.parquet")):
            with open_parquet(path, ROLLOUT_SCHEMA) as file:
                column = column_index(file, "token_ids")
                total += sum(file.metadata.row_group(g).column(column).num_values for g in range(file.num_row_groups))
        return total

    # -- the rest -----------------------------------------------------------------------------------------------

    def add_tokenizer(self, content: bytes) -> str:
        """Keep a `tokenizer.json` in the run, once for both sides; returns the first 16 hex digits of its SHA-256."""
        name = tokenizer_name(content)
        path = self.tokenizer_path(name)
        if not path.exists():
            write_bytes_atomically(self._inside(path), content)
        return name

    def tokenizer_path(self, name: str) -> Path:
        """Where the tokenizer with this hash is kept."""
        return self.path / "tokenizers" / f"{_checked_name(name)}.json"

    def tokenizer_file(self, name: str) -> Path:
        """The same. Raises: RunError if it is absent, or its content is not what its name says."""
        path = self.tokenizer_path(name)
        found = _digest_of(path.read_bytes()) if path.exists() else "absent"
        if found != name:
            raise RunError(
                f"{path}: the tokenizer is damaged or absent (SHA-256 {found}). Delete what is there and score the "
                "run again with --resume, which writes it anew."
            )
        return path

    def seen(self, rollout: str, trainer: ReadingInfo) -> Seen:
        """What is judged when a reading is held against this trainer side: the rollouts that are there now."""
        ids = sorted(self.rollout_ids())
        scorer = f"{trainer.request.engine}, {trainer.meaning}"
        return Seen(rollout=rollout, trainer=scorer, rollouts=len(ids), digest=_digest_of(chr(10).join(ids).encode()))

    def looks(self) -> Looks:
        """What was judged before."""
        path = self.path / "judgements" / "looks.json"
        return read_json(path, Looks) if path.exists() else Looks()

    def write_look(self, data: Seen) -> None:
        """Keep that these data were judged."""
        with self.writing("looks"):
            looks = self.looks().with_look(data)
            path = self.path / "judgements" / "looks.json"
            write_text_atomically(self._inside(path), looks.model_dump_json(indent=2) + "\n")

    def write_judgement(self, name: str, judgement: Judgement) -> Path:
        """Keep a judgement; returns its folder."""
        folder = self.path / "judgements" / _checked_name(name)
        write_text_atomically(self._inside(folder / "verdicts.json"), judgement.model_dump_json(indent=2) + "\n")
        return folder

    def write_report(self, name: str, data: ReportData, pages: dict[str, str]) -> None:
        """Keep what a report shows beyond the judgement, and the report itself: file name -> text."""
        folder = self.path / "judgements" / _checked_name(name)
        for file, text in {"tables.json": data.model_dump_json() + "\n", **pages}.items():
            write_text_atomically(self._inside(folder / file), text)

    def report_data(self, name: str) -> ReportData:
        """What a report shows beyond the judgement. Raises: RunError if it is absent or damaged."""
        path = self.path / "judgements" / _checked_name(name) / "tables.json"
        if not path.exists():
            raise RunError(f"{path}: is absent; an earlier version judged. Judge again: onepolicy judge {self.path}")
        return read_json(path, ReportData)

    def judgement(self, name: str) -> Judgement:
        """A judgement that was kept. Raises: RunError if there is none of that name."""
        path = self.path / "judgements" / _checked_name(name) / "verdicts.json"
        if not path.exists():
            raise RunError(f"{self.path}: there is no judgement {name!r}. Make one with: onepolicy judge {self.path}")
        return read_json(path, Judgement)

    def judgement_names(self) -> list[str]:
        """Names of the judgements that the run keeps."""
        return sorted(path.parent.name for path in (self.path / "judgements").glob("*/verdicts.json"))

    def write_diagnosis(self, name: str, diagnosis: Diagnosis) -> None:
        """Keep why the two sides of a judgement differ, beside it."""
        path = self.path / "judgements" / _checked_name(name) / "findings.json"
        write_text_atomically(self._inside(path), diagnosis.model_dump_json(indent=2) + "\n")

    def diagnosis(self, name: str) -> Diagnosis | None:
        """What `write_diagnosis` kept beside a judgement; None if there is nothing. Raises: RunError if damaged."""
        path = self.path / "judgements" / _checked_name(name) / "findings.json"
        return read_json(path, Diagnosis) if path.exists() else None

    @contextmanager
    def writing(self, what: str, *, shard: str = "1/1") -> Iterator[None]:
        """Hold the lock of one writer; whoever does a shard shares it with the other shards only.

        Raises: RunError if another process holds it.
        """
        lock = self.path / f".writing-{what}"
        with (
            one_writer(lock, shared=shard != "1/1"),
            one_writer(lock.with_name(f"{lock.name}-{shard.replace('/', '-of-')}")),
        ):
            yield

    def _reading_path(self, name: str) -> Path:
        return self.path / "readings" / _checked_name(name)

    def _write_manifest(self) -> None:
        write_text_atomically(self.path / "manifest.json", self.manifest.model_dump_json(indent=2) + "\n")

    def _write_table(self, path: Path, table: pa.Table) -> None:
        write_atomically(self._inside(path), lambda temporary: write_parquet(table, temporary))

    def _inside(self, path: Path) -> Path:
        """The path, if links do not lead out of the run. Raises: RunError."""
        if not path.parent.resolve().is_relative_to(self.path.resolve()):
            raise RunError(f"{path}: a link leads out of the run ({path.parent.resolve()}); nothing is written there.")
        return path

    def _column(self, folder: str, schema: pa.Schema, column: str) -> list[str]:
        names: list[str] = []
        for _, table in self._row_groups(folder, schema, columns=[column]):
            names += table[column].to_pylist()
        return names

    def _row_groups(
        self, folder: str, schema: pa.Schema, *, columns: list[str] | None = None
    ) -> Iterator[tuple[Path, pa.Table]]:
        for path in sorted((self.path / folder).glob("part-*.parquet")):
            with open_parquet(path, schema) as file:
                for group in range(file.num_row_groups):
                    yield path, read_row_group(path, file, group, columns)


def tokenizer_name(content: bytes) -> str:
    """The name under which a run keeps a tokenizer: the first 16 hex digits of its SHA-256."""
    return _digest_of(content)


def _is_unused(path: Path) -> bool:
    """A folder that is empty, but for what a process leaves that was killed, or has not yet written its manifest."""
    return path.is_dir() and all(is_temporary(file) for file in path.iterdir())


def _check_same_reading(path: Path, found: ReadingInfo, asked: ReadingInfo) -> None:
    pairs = ((found.request, asked.request), (found.engine, asked.engine))
    differing = _other_environment(found, asked) + [
        f"{key} = {getattr(there, key)!r}, and now {getattr(now, key)!r}"
        for there, now in pairs
        for key in type(there).model_fields
        if getattr(there, key) != getattr(now, key)
    ]
    if differing:
        raise RunError(
            f"{path}: this reading was started with {differing[0]} is asked for. Ask for the same, or for a reading of "
            "another name (score --name) or another run."
        )


def _other_environment(found: ReadingInfo, asked: ReadingInfo) -> list[str]:
    """What computes the number is another one: one reading has one environment, or its numbers are of two engines.

    The processor beside an accelerator does not count; shards may run on other machines of a kind.
    """
    beside = {"cpu", "cpus"} if found.engine.device != "cpu" else set()
    return [
        f"{name} = {there!r}, and now {asked.environment[name]!r}"
        for name, there in found.environment.items()
        if name in asked.environment and asked.environment[name] != there and name not in beside
    ]


def _named(path: Path, rows: Iterator[RowT]) -> Iterator[RowT]:
    try:
        yield from rows
    except RunError as error:
        raise RunError(f"{path}: {error}") from error


def _check_same(path: Path, asked: Manifest, found: Manifest, *, apart_from: set[str], instead: str) -> None:
    now, there = _asked_for(asked), _asked_for(found)
    differing = sorted(key for key in now if now[key] != there[key] and key not in apart_from)
    if differing:
        key = differing[0]
        raise RunError(
            f"{path}: this run was started with {key} = {there[key]!r}, and now {now[key]!r} is asked for. "
            f"{instead}, or give another --run."
        )


def _asked_for(manifest: Manifest) -> dict[str, object]:
    """What was asked for, by name; the fields of the protocol stand for themselves."""
    asked: dict[str, object] = manifest.model_dump(exclude={"status", "tool_version", "protocol"})
    return asked | {f"protocol.{name}": value for name, value in manifest.protocol.model_dump().items()}


def _part_name(rollout_ids: Sequence[str]) -> str:
    return f"part-{_digest_of(chr(10).join(rollout_ids).encode())}.parquet"


def _digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _checked_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} cannot be a name inside a run: use letters, digits, '.', '_' and '-'.")
    return name


def _read_manifest(path: Path) -> Manifest:
    file = path / "manifest.json"
    with disk_errors(path):
        if not file.exists():
            raise RunError(f"{path}: no run here (manifest.json is absent). Record one with: onepolicy record")
    version = raw_json(file).get("format_version")
    if version != FORMAT_VERSION:
        raise RunError(
            f"{file}: the run has format version {version!r}; this onepolicy reads version {FORMAT_VERSION}. "
            "Read it with the onepolicy that wrote it, or a later one."
        )
    return read_json(file, Manifest)
