"""`onepolicy protocol`."""

from __future__ import annotations

import json
import math
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from pydantic import BaseModel
from rich.console import Console

from onepolicy.cli.app import EXIT_STATUS_HELP, STAGE_EXIT_STATUS_HELP
from onepolicy.cli.show import progress_bar
from onepolicy.records.files import write_text_atomically
from onepolicy.records.verdict import Status
from onepolicy.report.protocol import show_consequences, show_differences, show_lost, show_notes, show_protocol
from onepolicy.sampling.convert import Note
from onepolicy.sampling.diff import Difference
from onepolicy.sampling.measured.search import Measured
from onepolicy.workflow.protocol import (
    YAML,
    Comparison,
    Said,
    compare,
    refuse_over_source,
    said_in,
    written_for,
)
from onepolicy.workflow.protocol_lock import Locked, Verified, lock_path
from onepolicy.workflow.protocol_lock import lock as write_lock_of
from onepolicy.workflow.protocol_lock import verify as verify_lock

_DIFF_STATUS = "Exit status: 0 the same, 1 different, 2 could not run, 3 it cannot be known."
_json = click.option("--json", "as_json", is_flag=True, help="Print what was found as JSON.")
_output = click.option("--output", type=click.Path(path_type=Path, dir_okay=False), help="Write here.")


@click.group()
def protocol() -> None:
    """Do both sides sample alike? Files and runs need no model and no engine.

    SOURCE is a protocol (sampling_config.yaml), a lock (.lock), a run
    directory, green:FOLDER (the last run in it that passed), a model's folder,
    a framework's file as FRAMEWORK:FILE, for example vllm:request.json or
    llamacpp:props.json, or a running server, as vllm:http://127.0.0.1:8000 or
    llamacpp:http://127.0.0.1:8080: what it uses for a request that leaves
    fields out, said by it or measured. With ?request=FILE, a JSON object,
    these fields are sent; with ?completions=N (8) more or fewer are drawn of
    each of 8 texts.
    """


@protocol.command(epilog=STAGE_EXIT_STATUS_HELP)
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@_json
def show(sources: tuple[str, ...], as_json: bool) -> int:
    """Show each field of a protocol, and where its value is from."""
    with progress_bar() as bar:
        found = [said_in(source, bar) for source in sources]
    if as_json:
        _print_json([_of_said(said) for said in found])
        return 0
    console = Console()
    for said in found:
        show_protocol(said.source, said.read, console)
    return 0


@protocol.command(epilog=_DIFF_STATUS)
@click.argument("a")
@click.argument("b")
@click.option("--run", type=click.Path(path_type=Path, file_okay=False), help="Say what it does to this run.")
@_json
def diff(a: str, b: str, run: Path | None, as_json: bool) -> int:
    """Say in what two protocols differ, why it matters, and what it does to a run.

    A figure on a run is exact where it is counted or follows from what
    --statistics keeps, bounded where only the most likely tokens are recorded,
    and else not known.
    """
    with progress_bar() as bar:
        found = compare(a, b, run=run, progress=bar)
    if as_json:
        _print_json(_of_comparison(found))
    else:
        _show_comparison(found, Console())
    return found.status.exit_status


@protocol.command(epilog=STAGE_EXIT_STATUS_HELP)
@click.argument("framework")
@click.argument("source")
@_output
@_json
def write(framework: str, source: str, output: Path | None, as_json: bool) -> int:
    """Write a protocol as a framework's configuration, or as yaml.

    What changes what is drawn and cannot be said there is an error.
    """
    with progress_bar() as bar:
        text, written = written_for(framework, source, bar)
    if output is not None:
        if framework != YAML:
            refuse_over_source(output, source)
        write_text_atomically(output, text)
    if as_json:
        _print_json({"content": written.content, "lost": [asdict(note) for note in written.lost]})
        return 0
    click.echo(text if output is None else f"{output}: protocol {written.hash}\n", nl=False)
    show_lost(written.lost, Console(stderr=True))
    return 0


@protocol.command(epilog=STAGE_EXIT_STATUS_HELP)
@click.argument("source")
@_output
def lock(source: str, output: Path | None) -> int:
    """Keep a protocol and its hash, by default beside it in SOURCE.lock."""
    path = output or lock_path(source)
    refuse_over_source(path, source)
    with progress_bar() as bar:
        made = write_lock_of(source, path, bar)
    words = [source, *(() if output is None else ("--lock", str(output)))]
    command = f"onepolicy protocol verify {shlex.join(words)}"
    click.echo(f"{path}: protocol {made.lock.hash}. Hold it against what is used with: {command}")
    if made.was_there:
        click.echo(_replaced(made))
    return 0


@protocol.command(epilog=EXIT_STATUS_HELP)
@click.argument("source")
@click.option("--lock", "path", type=click.Path(path_type=Path, dir_okay=False), help="SOURCE.lock if not given.")
@_json
def verify(source: str, path: Path | None, as_json: bool) -> int:
    """Say which fields of a protocol moved since its lock was written."""
    with progress_bar() as bar:
        found = verify_lock(source, path or lock_path(source), bar)
    if as_json:
        _print_json(_of_verified(found))
    else:
        _show_verified(found, path or lock_path(source), Console())
    return found.status.exit_status


def _replaced(made: Locked) -> str:
    if made.replaced is None:
        return "It replaces a file that was no lock, or one that was edited."
    if not made.moved:
        return f"It replaces {made.replaced.hash}, which is the same."
    return f"It replaces {made.replaced.hash}; moved: {', '.join(one.field for one in made.moved)}."


def _show_comparison(found: Comparison, console: Console) -> None:
    names = (found.a.source, found.b.source)
    show_differences(found.differences, names, console)
    show_consequences(found.consequences, console)
    for said in (found.a, found.b):
        show_notes(_title(said), said.open_notes, console)
    _show_untold(found.untold, console)
    console.print(_sentence(found), soft_wrap=True, highlight=False, markup=False)


def _title(said: Said) -> str:
    return f"{said.source}: not known" if said.is_partly_known else f"{said.source} has what no protocol has"


def _show_untold(found: tuple[Difference, ...], console: Console) -> None:
    why = "they are nearer than what was measured tells apart"
    notes = (Note(field=one.field, value=f"{one.a} and {one.b}", why=why, matters=True) for one in found)
    show_notes("cannot be told apart", notes, console)


def _sentence(found: Comparison) -> str:
    if found.status is Status.FAIL:
        return _different(found.differences)
    if found.status is Status.UNKNOWN and (found.a.is_partly_known or found.b.is_partly_known):
        return "UNKNOWN: what is known of the two is the same."
    if found.status is Status.UNKNOWN:
        return "UNKNOWN: the fields of a protocol are the same, and what else is set cannot be compared."
    return f"SAME: both are the protocol {found.a.protocol.hash}." if not found.differences else _UNMATTERED


def _different(found: tuple[Difference, ...]) -> str:
    count, others = sum(one.matters for one in found), [one.field for one in found if not one.matters]
    said = f"DIFFERENT: {count} field{'s' if count > 1 else ''} that matter{'' if count > 1 else 's'}"
    if others:
        said += f", {len(others)} that do{'' if len(others) > 1 else 'es'} not ({', '.join(others)})"
    return f"{said}."


_UNMATTERED = "SAME: what differs changes nothing of what is drawn."


def _show_verified(found: Verified, path: Path, console: Console) -> None:
    show_differences(found.moved, (str(path), found.now.source), console)
    show_notes(_title(found.now), found.now.open_notes, console)
    _show_untold(found.untold, console)
    words = {
        Status.PASS: f"SAME: the protocol is {found.lock.hash}, as it was locked.",
        Status.FAIL: f"MOVED: {', '.join(one.field for one in found.moved)}. To write the locked one back: "
        f"{_write_back(found.now, path)}",
        Status.UNKNOWN: "UNKNOWN: what is known of the protocol did not move."
        if found.now.is_partly_known
        else "UNKNOWN: the fields of the protocol did not move; what else is set cannot be compared.",
    }
    console.print(words[found.status], soft_wrap=True, highlight=False, markup=False)


def _write_back(now: Said, path: Path) -> str:
    """The command that writes the locked protocol where the source reads it from, or prints it."""
    framework, _, file = now.source.partition(":")
    words = ["onepolicy", "protocol", "write"]
    if file and framework == now.kind and not now.is_server:
        return shlex.join([*words, framework, str(path), "--output", file])
    own = ["--output", now.source] if now.kind == "protocol" else []
    return shlex.join([*words, now.kind if now.is_server else "yaml", str(path), *own])


def _of_said(said: Said) -> dict[str, Any]:
    return {
        "source": said.source,
        "kind": said.kind,
        "hash": said.protocol.hash,
        "protocol": said.protocol.model_dump(mode="json"),
        "sources": dict(said.read.sources),
        "ignored": [asdict(note) for note in said.read.ignored],
        "measured": {name: _of_measured(one) for name, one in said.measured.items()},
    }


def _of_measured(found: Measured) -> dict[str, Any]:
    """With the nearest values on both sides that the server does not use; null is none."""
    low, high = (edge if math.isfinite(edge) else None for edge in (found.low, found.high))
    seen = {"tokens": found.seen.compared, "differed": found.seen.differed}
    return {"value": found.value, "low": low, "high": high, **seen}


def _of_comparison(found: Comparison) -> dict[str, Any]:
    return {
        "status": {Status.PASS: "same", Status.FAIL: "different", Status.UNKNOWN: "unknown"}[found.status],
        "a": _of_said(found.a),
        "b": _of_said(found.b),
        "differences": [_of_difference(one) for one in found.differences],
        "untold": [_of_difference(one) for one in found.untold],
        "consequences": [asdict(one) for one in found.consequences],
    }


def _of_verified(found: Verified) -> dict[str, Any]:
    return {
        "status": {Status.PASS: "same", Status.FAIL: "moved", Status.UNKNOWN: "unknown"}[found.status],
        "hash": found.lock.hash,
        "now": _of_said(found.now),
        "moved": [_of_difference(one) for one in found.moved],
        "untold": [_of_difference(one) for one in found.untold],
    }


def _of_difference(one: Difference) -> dict[str, Any]:
    return {**asdict(one), "a": _plain(one.a), "b": _plain(one.b)}


def _plain(value: object) -> object:
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else value


def _print_json(value: object) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))
