"""`onepolicy import` and `compare`: from the files that a framework recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from onepolicy.cli.app import EXIT_STATUS_HELP, STAGE_EXIT_STATUS_HELP
from onepolicy.cli.files import columns_from, columns_option, format_option
from onepolicy.cli.options import (
    json_option,
    limit_options,
    limits_from,
    protocol_from,
    together,
)
from onepolicy.cli.show import Bar, finish, progress_bar
from onepolicy.records.manifest import Imported
from onepolicy.records.protocol import SamplingProtocol
from onepolicy.visible import visible
from onepolicy.workflow.import_recorded import ImportRequest, compare_request, import_recorded
from onepolicy.workflow.recorded import Recording, find_recording

file_options = together(
    click.argument("a", metavar="A"),
    click.argument("b", metavar="[B]", required=False),
    format_option,
    columns_option,
    click.option("--temperature", default=1.0, show_default=True, help="That the rollouts were sampled at."),
    click.option("--top-p", default=1.0, show_default=True, help="Likewise; 1 is off."),
    click.option("--top-k", default=0, show_default=True, help="Likewise; 0 is off."),
    click.option("--min-p", default=0.0, show_default=True, help="Likewise; 0 is off."),
    click.option("--tokenizer", metavar="PATH", help="The model's tokenizer, to show text: a folder or a file."),
)


@click.command("import", epilog=STAGE_EXIT_STATUS_HELP)
@file_options
@click.option("--run", "path", type=click.Path(path_type=Path), required=True, help="Where the run is kept.")
def import_(path: Path, **options: Any) -> int:
    """Read recorded files into a run.

    A is a file, a folder, a quoted glob or a URL; B the same for the other
    side, if A holds one. The format is known from the content.
    """
    request = _request(options)
    with progress_bar() as bar:
        run = import_recorded(path, request, progress=bar)
        assert run.manifest.imported is not None, "it was just written"
        _say(bar, run.manifest.imported)
    click.echo(
        f"{run.path}: {run.manifest.planned_rollouts} rollouts. Judge them: onepolicy judge {run.path}", err=True
    )
    return 0


@click.command(epilog=EXIT_STATUS_HELP)
@file_options
@limit_options
@json_option
def compare(as_json: bool, **options: Any) -> int:
    """Compare the two sides in recorded files and decide. Needs no engine.

    A is a file, a folder, a quoted glob or a URL that holds both sides'
    logprobs, or one side's, and then B holds the other's for the same tokens.
    """
    limits = limits_from(options)
    request = _request(options)
    with progress_bar() as bar:
        judgement, imported = compare_request(request, limits=limits, native=as_json, progress=bar)
        _say(bar, imported)
    return finish(judgement, as_json=as_json)


def _request(options: dict[str, Any]) -> ImportRequest:
    usual = SamplingProtocol().model_dump()
    protocol = protocol_from({name: options.get(name, value) for name, value in usual.items()})
    columns = columns_from(options["columns"])

    def found(path: str) -> Recording:
        return find_recording([path], format_name=options["format_name"], columns=columns)

    return ImportRequest(
        recording=found(options["a"]),
        other=None if options["b"] is None else found(options["b"]),
        protocol=protocol,
        tokenizer=options["tokenizer"],
    )


def _say(bar: Bar, imported: Imported) -> None:
    """What was read, before what came of it."""
    files = "1 file" if imported.file_count == 1 else f"{imported.file_count} files"
    bar.note(f"{imported.format}, {files}: {imported.read} rows read, {imported.used} used, {imported.refused} refused")
    for line in (*imported.refusals, *imported.notes):
        bar.note(f"  {visible(line)}")
