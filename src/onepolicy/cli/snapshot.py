"""`onepolicy snapshot`: keep what a checkpoint says of fixed ids, and hold another one against it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from rich.console import Console

from onepolicy.cli.app import EXIT_STATUS_HELP, STAGE_EXIT_STATUS_HELP
from onepolicy.cli.options import json_option, limit_options, limits_from
from onepolicy.cli.show import progress_bar
from onepolicy.engines.spec import parse_spec
from onepolicy.errors import UsageError
from onepolicy.report.console import show
from onepolicy.workflow.snapshot import SUITE, TOP, SnapshotRequest, compare_engine, compare_snapshots
from onepolicy.workflow.snapshot import take as run_take

folder = click.Path(path_type=Path, file_okay=False)


@click.group()
def snapshot() -> None:
    """Keep what a checkpoint says of fixed ids, and compare with it later."""


@snapshot.command(epilog=STAGE_EXIT_STATUS_HELP)
@click.option("--engine", required=True, metavar="SPEC", help="The engine that scores, with the checkpoint.")
@click.option(
    "--output", type=folder, required=True, metavar="DIR", help="Where the snapshot is kept, a run directory."
)
@click.option("--suite", default=SUITE, show_default=True, help="Fixed sequences, which the engine encodes.")
@click.option("--like", type=folder, metavar="DIR", help="Take the ids of this snapshot instead of a suite.")
@click.option("--budget", type=click.IntRange(min=1), metavar="INTEGER", help="Completion tokens at most.")
@click.option(
    "--top",
    type=click.IntRange(min=0),
    metavar="INTEGER",
    default=TOP,
    show_default=True,
    help="Most likely tokens to keep at each position; 0 is none.",
)
@click.option("--resume", is_flag=True, help="Go on with a snapshot that was begun.")
def take(engine: str, output: Path, resume: bool, **options: Any) -> int:
    """Score fixed ids with a checkpoint, and keep its distribution.

    Logprobs, the most likely tokens, hashes of weights and tokenizer, versions
    and options are kept. Nothing is sampled.
    """
    if options["like"] is not None:
        _refuse_a_suite_too(options["like"])
    request = SnapshotRequest(engine=parse_spec(engine), **options)
    with progress_bar() as bar:
        run = run_take(request, output, resume=resume, progress=bar)
    click.echo(f"{output}: {len(run.rollout_ids())} sequences", err=True)
    return 0


@snapshot.command(epilog=EXIT_STATUS_HELP)
@click.argument("before", type=folder)
@click.argument("after", type=folder, required=False)
@click.option("--engine", metavar="SPEC", help="Compare with what this engine says now, instead of AFTER.")
@click.option("--keep", type=folder, metavar="DIR", help="Keep the snapshot that is taken of --engine.")
@limit_options
@json_option
def compare(
    before: Path, after: Path | None, engine: str | None, keep: Path | None, as_json: bool, **options: Any
) -> int:
    """Hold a snapshot, or a live engine, against an earlier snapshot.

    Versions, configuration, tokenizer and weights are compared first; of a
    mismatch they are named before any number. d is the later one minus the
    earlier one.
    """
    _refuse_no_side(after, engine, keep)
    limits = limits_from(options)
    if after is not None:
        judgement = compare_snapshots(before, after, limits=limits)
    else:
        with progress_bar() as bar:
            judgement = compare_engine(before, parse_spec(str(engine)), limits=limits, keep=keep, progress=bar)
    if as_json:
        click.echo(judgement.model_dump_json(indent=2))
    else:
        show(judgement.model_copy(update={"run": ""}), Console())  # a comparison is kept in neither of the two
    return judgement.exit_status


def _refuse_no_side(after: Path | None, engine: str | None, keep: Path | None) -> None:
    if after is not None and engine is not None:
        raise UsageError(f"{after} and --engine {engine} are two sides to compare with. Give one, not both.")
    if after is None and engine is None:
        raise UsageError("name what to compare with: either a second snapshot, or --engine SPEC (with --keep DIR).")
    if keep is not None and engine is None:
        raise UsageError(f"--keep {keep} keeps the snapshot that is taken of --engine SPEC, and none is. Leave it out.")


def _refuse_a_suite_too(like: Path) -> None:
    """The sequences of a snapshot are taken as they are, so what else chooses them would be passed over."""
    source = click.get_current_context().get_parameter_source
    given = [name for name in ("suite", "budget") if source(name) is ParameterSource.COMMANDLINE]
    if given:
        raise UsageError(
            f"--{given[0]} chooses sequences, and --like {like} takes all of that snapshot. Give one of them."
        )
