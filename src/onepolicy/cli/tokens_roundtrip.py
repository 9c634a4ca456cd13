"""`onepolicy tokens roundtrip`."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console

from onepolicy.cli.show import progress_bar
from onepolicy.report.round_trip import show_round_trip
from onepolicy.workflow.tokens_roundtrip import RoundTripRequest, tokens_roundtrip

EPILOG = "Exit status: 0 all come back, 1 some do not, 2 could not run, 3 nothing could be checked, 130 interrupted."


@click.command(epilog=EPILOG)
@click.argument("targets", metavar="TARGET...", nargs=-1, required=True)
@click.option("--sampling", default="", metavar="TOKENIZER", help="Of the side that sampled; else the run's own.")
@click.option("--scoring", default="", metavar="TOKENIZER", help="Of the side that scores; else the run's own.")
@click.option(
    "--list",
    "listed",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write every break there, one JSON a line.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def roundtrip(targets: tuple[str, ...], sampling: str, scoring: str, listed: Path | None, as_json: bool) -> int:
    """Do sampled ids survive their text, and a text its ids?

    ids -> text, as the sampling side decodes -> ids, as the scoring side
    encodes; and text -> ids -> text. A TARGET is a run directory, a suite, or
    a JSONL or Parquet file whose rows have token_ids, or prompt_ids and
    completion_ids, or text, and may have an id. If ids come with a text, it is
    the one that the sampling engine gave.

    A TOKENIZER is a folder, a tokenizer.json, a GGUF file, a hub id in the
    local cache, a packaged model (smollm2), or a live server, as
    vllm:http://host:port or llamacpp:http://host:port.
    """
    request = RoundTripRequest(targets=targets, sampling=sampling, scoring=scoring, listed=listed)
    with progress_bar() as bar:
        report = tokens_roundtrip(request, progress=bar)
    if as_json:
        click.echo(report.model_dump_json(indent=2))
    else:
        show_round_trip(report, Console())
    return report.exit_status
