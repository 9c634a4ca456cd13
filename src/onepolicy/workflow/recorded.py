"""Files that a framework recorded: whose they are, and their rollouts, with every row accounted for."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from onepolicy.dumps.ahead import ahead
from onepolicy.dumps.block import RecordedBlock, in_blocks
from onepolicy.dumps.contract import Format, Refusal
from onepolicy.dumps.file import DumpFile, expand
from onepolicy.errors import DumpError, UsageError
from onepolicy.integrations import FORMATS, columns_format, format_named
from onepolicy.records.manifest import Imported
from onepolicy.records.protocol import SamplingProtocol
from onepolicy.workflow.parallel_lines import AS_IT_COMES, Job, Spread, Workers, in_order, is_plain_lines
from onepolicy.workflow.progress import Progress, Silent
from onepolicy.workflow.reading_worker import blocks_of_file

SAMPLING = ("temperature", "top_p", "top_k", "min_p")
"""names of tags under which a stored request says how it sampled"""
KEPT = 5
"""names of files and refusals that are shown"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Files of one format."""

    asked: tuple[str, ...]
    """as the user named them"""
    format: Format
    files: tuple[DumpFile, ...]
    notes: tuple[str, ...] = ()
    columns: Mapping[str, str] | None = None
    """our name -> theirs, as the user said; with the name of the format, all that another process must know"""

    @property
    def name(self) -> str:
        """For messages: what the user named."""
        return " ".join(self.asked)


@dataclass(slots=True, kw_only=True)
class Tally:
    """What became of the rows; read = used + refused."""

    read: int = 0
    used: int = 0
    refused: int = 0
    refusals: list[Refusal] = field(default_factory=list)
    """the first of them"""

    def add(self, block: RecordedBlock) -> None:
        """Count a block."""
        self.read += block.read
        self.used += len(block.rollouts.rollout_ids)
        self.refused += len(block.refused)
        self.refusals += block.refused[: KEPT - len(self.refusals)]

    def imported(self, recording: Recording, notes: Iterable[str] = ()) -> Imported:
        """As a run's manifest keeps it."""
        return Imported(
            format=recording.format.name,
            files=tuple(file.name for file in recording.files[:KEPT]),
            file_count=len(recording.files),
            read=self.read,
            used=self.used,
            refused=self.refused,
            refusals=tuple(map(str, self.refusals)),
            notes=(*recording.format.notes, *recording.notes, *notes),
        )


def find_recording(
    paths: Sequence[str | Path], *, format_name: str | None = None, columns: Mapping[str, str] | None = None
) -> Recording:
    """The files at some paths, folders, globs or URLs, and the format that their content says.

    columns: our name -> theirs, of plain Parquet or JSONL.
    Raises: DumpError if nothing is there, nothing is recognised, or the files are of several formats; UsageError if
    there is no format of this name.
    """
    for path in paths:
        if not str(path):
            raise UsageError("an empty path: name a file, a folder, a quoted glob or a URL.")
        if (Path(path) / "manifest.json").is_file():
            raise DumpError(f"{path}: is a run and no recording of a framework. Judge it with: onepolicy judge {path}")
    files = expand(paths)
    asked = tuple(str(path) for path in paths)
    if columns or format_name is not None:
        wanted = columns_format(columns) if columns else format_named(format_name or "")
        found = _sorted_out(files, {wanted.name: wanted})
        if not found.of:
            raise DumpError(f"{' '.join(asked)}: holds no file that is {wanted.title}. {_what_it_is(files)}")
        found.refuse_unknown_beside(found.of[wanted.name])
        chosen = tuple(found.of[wanted.name])
        return Recording(asked=asked, format=wanted, files=chosen, notes=found.notes(), columns=columns)
    known = {name: format_named(name) for name in FORMATS}
    found = _sorted_out(files, known)
    if not found.of:
        raise DumpError(
            f"{' '.join(asked)}: is of no format that is known here. {_what_it_is(files)} Known: {', '.join(FORMATS)}. "
            "Plain Parquet or JSONL is read with --columns trainer_logprobs=THEIR_NAME,..."
        )
    name = found.one_with_both_sides(known, asked)
    found.refuse_unknown_beside(found.of[name])
    return Recording(asked=asked, format=known[name], files=tuple(found.of[name]), notes=found.notes(besides=name))


def blocks_of(
    recording: Recording, tally: Tally, progress: Progress, *, spread: Spread = AS_IT_COMES
) -> Generator[RecordedBlock, None, None]:
    """The rollouts, in flat memory, counted in `tally`. Large JSONL is read by other processes, which end with this.

    Raises: DumpError if a file is damaged or of another format, or a rollout id stands twice.
    """
    seen: set[str] = set()
    total = sum(file.size for file in recording.files)
    progress.start("reading", total, unit="bytes")
    with closing(ahead(_blocks(recording, progress, spread))) as blocks:
        for block in blocks:
            tally.add(block)
            for rollout_id in block.rollouts.rollout_ids:
                if rollout_id in seen:
                    raise DumpError(
                        f"{recording.name}: the rollout {rollout_id!r} stands twice. Name each file once, or give each "
                        "rollout an id of its own."
                    )
                seen.add(rollout_id)
            if block.rollouts.rollout_ids:
                yield block


def _blocks(recording: Recording, progress: Progress, spread: Spread) -> Iterator[RecordedBlock]:
    def here(job: Job) -> Iterator[RecordedBlock]:
        job.files[0].part = job.part
        yield from _of_group(recording.format, job.files)
        done(job)

    def done(job: Job) -> None:
        for file in job.files:
            assert file.position is not None, "every job has it set"
            file.position(file.size if job.part is None else job.part.end)
            file.drop()

    workers = Workers(format_name=recording.format.name, columns=recording.columns, spread=spread)
    yield from in_order(_jobs(recording, progress, spread), workers, here, done)


def _jobs(recording: Recording, progress: Progress, spread: Spread) -> Iterator[Job]:
    """What is read together, in the order of the files; each file was looked at, whether it is of the format."""
    together = recording.format.together is not None
    is_split = not together and spread.is_split(recording.files)
    for files in _groups(recording):
        for file in files:
            if not recording.format.recognises(file):
                raise DumpError(
                    f"{file.name}: is not {recording.format.title}. Name the files that are, or another --format "
                    f"({', '.join(FORMATS)})."
                )
            file.position = _Advance(progress)
        if is_split and is_plain_lines(files[0]):
            files[0].drop()
            yield from (Job(files=files, part=part) for part in files[0].parts(spread.part_bytes))
        else:
            yield Job(files=files)


def _groups(recording: Recording) -> list[list[DumpFile]]:
    """Files that are read together, where a format spreads a rollout over several; else each alone."""
    if recording.format.group is None:
        return [[file] for file in recording.files]
    found: defaultdict[str, list[DumpFile]] = defaultdict(list)
    for file in recording.files:
        found[recording.format.group(file)].append(file)
    return list(found.values())


def _of_group(known: Format, files: Sequence[DumpFile]) -> Iterator[RecordedBlock]:
    if known.together is not None:
        return in_blocks(known.together(files))
    [file] = files
    return blocks_of_file(known, file)


def sides_of(recording: Recording) -> set[str]:
    """Which sides the first rollouts of a recording hold: "rollout", "trainer". Raises: DumpError."""
    with closing(blocks_of(recording, Tally(), Silent())) as blocks:
        block = next(blocks, None)
    sides = {} if block is None else {"rollout": block.rollout, "trainer": block.trainer}
    return {name for name, side in sides.items() if side is not None}


def refuse_other_sampling(recording: Recording, block: RecordedBlock, protocol: SamplingProtocol) -> None:
    """Rollouts may say with what they were sampled. Raises: DumpError if that is not what the user said of them."""
    for text in dict.fromkeys(block.rollouts.tags):
        for name, said in json.loads(text).items():
            if name in SAMPLING and _value(name, said) != getattr(protocol, name):
                row = block.rollouts.rollout_ids[block.rollouts.tags.index(text)]
                raise DumpError(
                    f"{recording.name}: rollout {row} was sampled with {name} {said}, and not "
                    f"{getattr(protocol, name):g}. Give --{name.replace('_', '-')} {said}; rollouts that were sampled "
                    "in several ways are compared apart."
                )


def _value(name: str, said: str) -> float:
    """NaN, which equals nothing, if it is no number. For top_k, 0 and -1 are both off."""
    try:
        value = float(said)
    except ValueError:
        return float("nan")
    return max(value, 0.0) if name == "top_k" else value


class _Advance:
    """Bytes read so far of one file -> steps of a progress bar."""

    def __init__(self, progress: Progress) -> None:
        self._progress, self._before = progress, 0

    def __call__(self, position: int) -> None:
        self._progress.advance(max(position - self._before, 0))
        self._before = max(position, self._before)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sorted:
    """Files by the format that their content says."""

    of: dict[str, list[DumpFile]]
    unknown: list[DumpFile]

    def one_with_both_sides(self, known: Mapping[str, Format], asked: Sequence[str]) -> str:
        """The only format, or the only one of several that holds both sides. Raises: DumpError if several do."""
        names = list(self.of)
        whole = [name for name in names if known[name].trainer != "absent"]
        if len(names) > 1 and len(whole) != 1:
            named = ", ".join(f"{len(files)} of {name} ({files[0].name} ...)" for name, files in self.of.items())
            raise DumpError(
                f"{' '.join(asked)}: holds files of several formats: {named}. Choose one with --format, or name the "
                "files of one."
            )
        return whole[0] if whole else names[0]

    def refuse_unknown_beside(self, files: Sequence[DumpFile]) -> None:
        """A file under such a name that is empty, or of no kind, is one that was lost. Raises: DumpError."""
        endings = {_ending(file) for file in files}
        for file in self.unknown:
            if file.kind == "unknown" and _ending(file) in endings:
                raise DumpError(
                    f"{file.name}: is {'of an unknown kind' if file.size else 'empty'}, and beside it lie recordings "
                    "of the same ending: it was cut off or is none. Remove it, or name the files to be read."
                )

    def notes(self, *, besides: str = "") -> tuple[str, ...]:
        """What was not read, and why."""
        others = [(f"of the format {name}", files) for name, files in self.of.items() if besides and name != besides]
        others += [("of no known format", self.unknown)] if self.unknown else []
        return tuple(f"not read, {why}: {_named(files)}" for why, files in others)


def _sorted_out(files: Sequence[DumpFile], known: Mapping[str, Format]) -> _Sorted:
    """Recognise each file; of pickles in one folder the first speaks for all, as they are read whole to be known."""
    spoken: dict[tuple[str, str], str | None] = {}
    found = _Sorted(of={}, unknown=[])
    for file in files:
        folder = file.location.rpartition("/")[0] if file.kind in ("pickle", "torch") else file.location
        if (folder, file.kind) not in spoken:
            spoken[folder, file.kind] = _recognised(file, known)
            file.drop()
        name = spoken[folder, file.kind]
        (found.unknown if name is None else found.of.setdefault(name, [])).append(file)
    return found


def _recognised(file: DumpFile, known: Mapping[str, Format]) -> str | None:
    if file.kind == "unknown":
        return None
    return next((name for name, reader in known.items() if reader.recognises(file)), None)


def _what_it_is(files: Sequence[DumpFile]) -> str:
    """The content of the first file that is of some kind, for a message."""
    file = next((file for file in files if file.kind != "unknown"), files[0])
    has = ""
    if (first := file.first()) is not None:
        has = f" with the keys {', '.join(sorted(first)[:12])}"
    elif (schema := file.schema()) is not None:
        has = f" with the columns {', '.join(schema.names[:12])}"
    kind = {"unknown": "of an unknown kind"}.get(file.kind, file.kind)
    return f"{file.name} is {kind if file.size else 'empty'}{has}."


def _ending(file: DumpFile) -> str:
    return file.location.rpartition("/")[2].partition(".")[2]


def _named(files: Sequence[DumpFile]) -> str:
    more = f" and {len(files) - KEPT} more" if len(files) > KEPT else ""
    return ", ".join(file.name for file in files[:KEPT]) + more
