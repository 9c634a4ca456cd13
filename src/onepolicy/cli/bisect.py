"""`onepolicy bisect`."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console

from onepolicy.cli.show import progress_bar
from onepolicy.errors import UsageError
from onepolicy.report.bisect import show_bisection
from onepolicy.workflow.bisect import bisect as bisect_of
from onepolicy.workflow.check import new_run_path


@click.command(epilog="Exit status: 0 found and confirmed, 2 could not run, 3 unknown, 130 interrupted.")
@click.argument("config", type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--run",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where every start's log, run and outcome are kept; a new folder under runs/ if not given.",
)
@click.option("--resume", is_flag=True, help="Go on with the bisection at --run; what it has is kept.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def bisect(config: Path, folder: Path | None, resume: bool, as_json: bool) -> int:
    """Which switch of an engine makes the check fail?

    CONFIG names two configurations of one engine, a good and a bad one, by the
    switches in which they differ: arguments, variables, versions. The engine
    is started with some of them as in the bad one, checked and ended, until a
    set is found that fails and of which no switch can be left out.

    CONFIG's command is run as it stands there: read a file that comes from
    elsewhere first.
    """
    if resume and folder is None:
        raise UsageError("--resume needs --run DIR: the bisection to go on with.")
    with progress_bar() as bar:
        place = folder or new_run_path(f"bisect-{config.stem}")
        found = bisect_of(config, place, resume=resume, progress=bar)
    if as_json:
        click.echo(found.model_dump_json(indent=2))
    else:
        show_bisection(found, Console())
    return found.exit_status
