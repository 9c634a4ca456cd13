"""Protocols from wherever they are said: shown, compared, written for a framework, locked, verified."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from onepolicy.errors import UsageError
from onepolicy.integrations import PROTOCOLS, protocol_reader, protocol_writer
from onepolicy.records.json_text import json_in
from onepolicy.records.protocol import SamplingProtocol
from onepolicy.records.run import Run
from onepolicy.records.verdict import Status
from onepolicy.records.yaml_file import mapping_in, read_text
from onepolicy.sampling.completions import Sides
from onepolicy.sampling.consequence import Consequence
from onepolicy.sampling.consequences import consequences
from onepolicy.sampling.convert import Note, ReadProtocol, Written
from onepolicy.sampling.diff import Difference, differences
from onepolicy.sampling.file import protocol_text, read_protocol_file
from onepolicy.sampling.lock import read_lock
from onepolicy.sampling.measured.search import NOT_KNOWN, Measured
from onepolicy.sampling.vocabulary import refuse_beyond, vocabulary_of
from onepolicy.workflow.green import GREEN, green_run
from onepolicy.workflow.live_protocol import is_live, live_protocol
from onepolicy.workflow.model_folder import GENERATION, notes_of_config
from onepolicy.workflow.progress import Progress, Silent

YAML = "yaml"
"""our own file, among the frameworks that a protocol is written for"""
LOCK_ENDING = ".lock"
SILENT = Silent()
_KINDS = (
    "a protocol (.yaml), a lock (.lock), a run directory, green:FOLDER (the last run in it that passed), a framework's "
    "file as FRAMEWORK:FILE, or a running server as vllm:http://host:port or llamacpp:http://host:port"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A protocol, and who says it."""

    source: str
    """as it was asked for"""
    kind: str
    """protocol, lock, run, or the name of a framework"""
    read: ReadProtocol
    measured: Mapping[str, Measured] = field(default_factory=dict)
    """fields of a running server that are known to a resolution only"""
    own_ends: tuple[int, ...] = ()
    """ids that a running server takes for the model's own end tokens"""
    vocab_size: int | None = None
    """of the model of a run, where an engine of it says"""

    @property
    def protocol(self) -> SamplingProtocol:
        """The protocol itself."""
        return self.read.protocol

    @property
    def is_server(self) -> bool:
        """Whether it was asked of a running server."""
        return is_live(self.source)

    def could_be(self, name: str, value: object) -> bool:
        """Whether a field that was measured could have another value."""
        found = self.measured.get(name)
        return found is not None and isinstance(value, int | float) and found.could_be(value)

    def lacks(self, name: str) -> bool:
        """Whether a field is not known: it could not be measured on a running server, or recorded files do not say."""
        return self.read.sources.get(name, "").startswith(NOT_KNOWN)

    @property
    def is_partly_known(self) -> bool:
        """Whether some fields are known to a resolution only, or not at all."""
        return bool(self.measured) or any(self.lacks(name) for name in SamplingProtocol.model_fields)

    @property
    def open_notes(self) -> tuple[Note, ...]:
        """What may change what is drawn and is no part of the protocol."""
        return tuple(note for note in self.read.ignored if note.matters)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """In what two protocols differ, and what that does to a run."""

    a: Said
    b: Said
    differences: tuple[Difference, ...]
    consequences: tuple[Consequence, ...] = ()
    untold: tuple[Difference, ...] = ()
    """fields in which the two differ by less than a running server shows"""

    @property
    def status(self) -> Status:
        """Fail if something that matters differs; else unknown if a side has what cannot be compared."""
        if any(one.matters for one in self.differences):
            return Status.FAIL
        return Status.UNKNOWN if self.a.open_notes or self.b.open_notes or self.untold else Status.PASS


def said_in(source: str, progress: Progress = SILENT) -> Said:
    """The protocol that a file, a run, a framework's file or a running server says.

    source: a path, FRAMEWORK:FILE, or the spec of a server. Raises: UsageError if it is none of these or cannot be
    read; RunError; EngineError.
    """
    if is_live(source):
        found = live_protocol(source, progress)
        kind = source.partition(":")[0]
        return Said(source=source, kind=kind, read=found.read, measured=found.measured, own_ends=found.own_ends)
    return _said_in_file(source)


def _said_in_file(source: str) -> Said:
    framework, _, target = source.partition(":")
    if target and framework in PROTOCOLS:
        return _of_framework(source, framework, Path(target))
    if target and framework == GREEN:
        green = green_run(Path(target))
        found = said_in(str(green.path))
        sources = {**found.read.sources, **dict.fromkeys(green.put_back, "default")}
        return replace(found, read=replace(found.read, protocol=green.protocol, sources=sources))
    path = Path(source)
    if path.is_dir():
        return _of_folder(source, path)
    if path.name == GENERATION:
        return _of_framework(source, "transformers", path)
    if path.suffix in (".yaml", ".yml"):
        return _whole(source, "protocol", read_protocol_file(path))
    if path.suffix == LOCK_ENDING:
        return _whole(source, "lock", read_lock(path).protocol)
    if not path.exists():
        raise UsageError(f"{source}: there is no such file. Give {_KINDS}; known frameworks: {', '.join(PROTOCOLS)}.")
    raise UsageError(
        f"{source}: it does not show whose configuration this is. Give {_KINDS}; known frameworks: "
        f"{', '.join(PROTOCOLS)}."
    )


def compare(a: str, b: str, *, run: Path | None = None, progress: Progress = SILENT) -> Comparison:
    """In what two protocols differ; with a run, what the differences do to its completions.

    Raises: UsageError, one for stop ids that the run's model does not have; RunError, EngineError.
    """
    left, right = said_in(a, progress), said_in(b, progress)
    found, untold = told(differences(left.protocol, right.protocol), left, right)
    compared = Comparison(a=left, b=right, differences=found, untold=untold)
    if run is None:
        return compared
    recorded = Run.open(run)
    for said in (left, right):
        refuse_other_model(said.source, said.protocol, vocabulary_of(recorded), run)
    sides = Sides(a=left.protocol, b=right.protocol, names=(a, b), recorded=recorded.manifest.protocol)
    return replace(compared, consequences=consequences(recorded, found, sides))


def refuse_other_model(source: str, protocol: SamplingProtocol, vocab_size: int | None, run: Path | str) -> None:
    """Raise UsageError for stop ids that the model of a run does not have."""
    where = f"{source}: stop_token_ids"
    refuse_beyond(protocol.stop_token_ids, vocab_size, where=where, of=f"the model of {run}")


def told(found: tuple[Difference, ...], a: Said, b: Said) -> tuple[tuple[Difference, ...], tuple[Difference, ...]]:
    """Differences, and those that are smaller than what was measured. A field that is not known is in neither."""
    known = [one for one in found if not (a.lacks(one.field) or b.lacks(one.field) or _of_own_ends(one, a, b))]
    untold = tuple(one for one in known if a.could_be(one.field, one.b) or b.could_be(one.field, one.a))
    return tuple(one for one in known if one not in untold), untold


def _of_own_ends(one: Difference, a: Said, b: Said) -> bool:
    """Whether stop ids differ by the model's own end tokens alone, which end a completion anyway."""
    own = {*a.own_ends, *b.own_ends}
    return one.field == "stop_token_ids" and set(_ids(one.a)) ^ set(_ids(one.b)) <= own


def _ids(value: object) -> tuple[int, ...]:
    return value if isinstance(value, tuple) else ()


def written_for(framework: str, source: str, progress: Progress = SILENT) -> tuple[str, Written]:
    """The text of a framework's configuration with a protocol, and what of it is lost.

    Raises: UsageError if the framework is not known, or cannot say what changes what is drawn.
    """
    protocol = said_in(source, progress).protocol
    if framework == YAML:
        return protocol_text(protocol), Written(content=protocol.model_dump(mode="json"), hash=protocol.hash)
    if framework not in PROTOCOLS:
        raise UsageError(f"there is no framework {framework!r}. Known: {', '.join([YAML, *PROTOCOLS])}.")
    written = protocol_writer(framework)(protocol)
    if isinstance(written.content, list):
        return shlex.join(written.content) + "\n", written
    return json.dumps(written.content, indent=2, ensure_ascii=False) + "\n", written


def refuse_over_source(path: Path, source: str) -> None:
    """Raise UsageError if what is written would take the place of the protocol that it is made from."""
    framework, _, target = source.partition(":")
    read = Path(target if target and framework in PROTOCOLS else source)
    if not is_live(source) and path.exists() and read.exists() and path.samefile(read):
        raise UsageError(f"{path}: is the source itself, which would be lost. Write to another file.")


def whole_protocol(source: str, progress: Progress = SILENT, *, what: str = "it would be left out") -> SamplingProtocol:
    """The protocol that a source says, all of which is known.

    what: happens to what no protocol has. Raises: UsageError if it sets what no protocol has, or leaves a field open;
    see `said_in`.
    """
    said = said_in(source, progress)
    if not said.open_notes:
        return said.protocol
    note = said.open_notes[0]
    if note.value == "not given":
        raise UsageError(
            f"{source}: {note.field} is not given: {note.why}. A file with the parts request and "
            f"{note.field.removesuffix('.json')} holds both."
        )
    if said.is_partly_known:
        raise UsageError(
            f"{source}: {note.field} = {note.value} ({note.why}): not all of its protocol is known. Write the protocol "
            "as sampling_config.yaml and give that."
        )
    raise UsageError(
        f"{source}: {note.field} = {note.value} is no part of a protocol ({note.why}), so {what}. Take it out first."
    )


def _whole(source: str, kind: str, protocol: SamplingProtocol, notes: tuple[Note, ...] = ()) -> Said:
    sources = {name: kind if name in protocol.changed else "default" for name in SamplingProtocol.model_fields}
    return Said(source=source, kind=kind, read=ReadProtocol(protocol=protocol, sources=sources, ignored=notes))


def _of_folder(source: str, path: Path) -> Said:
    if not (path / "manifest.json").exists() and (path / GENERATION).exists():
        return _of_framework(source, "transformers", path / GENERATION)
    run = Run.open(path)
    said = _whole(source, "run", run.manifest.protocol, (*_of_import(run), *_of_hashes(run)))
    if run.manifest.imported is not None:
        said = replace(said, read=replace(said.read, sources=_given(said)))
    return replace(said, vocab_size=vocabulary_of(run))


def _given(said: Said) -> dict[str, str]:
    """Sources of an imported run: recorded files do not say how they were sampled, the import may have been told."""
    changed = said.protocol.changed
    return {
        name: "given to the import" if name in changed else f"{NOT_KNOWN}: the import was not given it"
        for name in SamplingProtocol.model_fields
    }


def _of_import(run: Run) -> tuple[Note, ...]:
    if run.manifest.imported is None:
        return ()
    why = "recorded files do not say how they were sampled; these are the values that the import was given"
    return (Note(field="protocol", value=run.manifest.imported.format, why=why, matters=True),)


def _of_hashes(run: Run) -> tuple[Note, ...]:
    """What the spans say of other protocols than the run's own."""
    own = run.manifest.protocol.hash
    others = Counter(span.protocol_hash for span in run.spans() if span.protocol_hash not in ("", own))
    return tuple(
        Note(
            field="protocol_hash",
            value=name,
            why=f"{count} calls were sampled under another protocol than the run's own ({own}), which is shown",
            matters=True,
        )
        for name, count in others.most_common()
    )


def _of_framework(source: str, framework: str, path: Path) -> Said:
    try:
        content = _content(path)
        read = protocol_reader(framework)(content)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error
    notes = notes_of_config(path, content) if framework == "transformers" else ()
    return Said(source=source, kind=framework, read=replace(read, ignored=(*read.ignored, *notes)))


def _content(path: Path) -> Mapping[str, Any] | list[Any]:
    """What a framework's file holds: JSON, YAML, or a command line with flags. Raises: UsageError without its name."""
    text = read_text(path, hint="Give the framework's configuration as a file.")
    if path.suffix in (".yaml", ".yml"):
        return mapping_in(text, what="a configuration is a mapping")
    if path.suffix != ".json" and not text.lstrip().startswith("{"):
        return _words(text)
    found = json_in(text)
    if not isinstance(found, dict | list):
        raise UsageError(f"a configuration is a JSON object, or a list of flags; this is {type(found).__name__}.")
    return found


def _words(text: str) -> list[str]:
    try:
        words = shlex.split(text, comments=True)
    except ValueError as error:
        raise UsageError(f"is no command line ({error}). JSON ends with .json, YAML with .yaml.") from error
    if not words:
        raise UsageError("holds nothing: no command line, not even a program's name. Give one, or JSON as .json.")
    return words
