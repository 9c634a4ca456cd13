"""`onepolicy history`."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console

from onepolicy.cli.app import EXIT_STATUS_HELP
from onepolicy.cli.show import progress_bar
from onepolicy.cli.timeline import refuse_input
from onepolicy.dumps.source import is_url
from onepolicy.records.files import write_text_atomically
from onepolicy.report.history_console import show_runs
from onepolicy.report.history_page import history_html
from onepolicy.workflow.history import history as history_of


@click.command(epilog=EXIT_STATUS_HELP)
@click.argument("folder")
@click.option("--html", "page", type=click.Path(path_type=Path, dir_okay=False), help="Write a page with a chart.")
@click.option("--json", "as_json", is_flag=True, help="Print the history as JSON.")
def history(folder: str, page: Path | None, as_json: bool) -> int:
    """Show a folder of runs over time, and the newest against the last green.

    FOLDER is a folder, or a URL that fsspec opens, with the runs of `gate`,
    `check` or `watch`. For each: when, the answer, KL with its bounds, and what
    changed since the run before. Runs that cannot be read are named.

    The newest run of each pair of engines and suite decides the exit status.
    """
    if page is not None and not is_url(folder):
        refuse_input(page, _runs_in(Path(folder)))
    with progress_bar() as bar:
        found = history_of(folder, progress=bar)
    if page is not None:
        write_text_atomically(page, history_html(found))
    if as_json:
        click.echo(found.model_dump_json(indent=2))
    else:
        show_runs(found, Console())
    return found.exit_status


def _runs_in(folder: Path) -> list[str]:
    """What a page must not lie in; the folder of the runs itself is a fine place for it."""
    return [str(path) for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []
