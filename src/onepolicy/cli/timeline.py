"""`onepolicy timeline`."""

from __future__ import annotations

from collections.abc import Sequence
from glob import glob
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from onepolicy.cli.app import EXIT_STATUS_HELP
from onepolicy.cli.files import columns_from, columns_option, format_option
from onepolicy.cli.show import progress_bar
from onepolicy.errors import UsageError
from onepolicy.judgement.limits import Limits
from onepolicy.judgement.load import PRESETS, load_limits
from onepolicy.monitor.state import STATE_FILE, STEPS_FILE
from onepolicy.records.files import write_text_atomically
from onepolicy.report.timeline import show_timeline, timeline_html
from onepolicy.workflow.timeline import FileOptions
from onepolicy.workflow.timeline import timeline as timeline_of


@click.command(epilog=EXIT_STATUS_HELP)
@click.argument("paths", metavar="PATH...", nargs=-1, required=True)
@click.option(
    "--limits",
    "limits_source",
    metavar="PRESET|FILE",
    help=f"{', '.join(PRESETS)}, or a YAML file. Default: those of the monitor, or strict.",
)
@click.option("--mean-kl", type=float, help=Limits.model_fields["mean_kl"].description)
@format_option
@columns_option
@click.option("--html", "page", type=click.Path(path_type=Path, dir_okay=False), help="Write a page with a chart.")
@click.option("--json", "as_json", is_flag=True, help="Print the timeline as JSON.")
def timeline(paths: tuple[str, ...], page: Path | None, as_json: bool, **options: Any) -> int:
    """Show the mismatch over the steps of a training, and name what happened.

    PATH is the run directory of a monitor; or files, folders, quoted globs or
    URLs of recorded rollouts that say the step they are of.

    Marked are levels that jump and stay (another engine, precision or
    configuration), growth from step to step (weights that do not reach the
    rollout engine) and single steps. Tokens whose weight versions say that they
    are stale are apart from those of the trainer's own weights.
    """
    limits, columns = _limits(options), columns_from(options.pop("columns"))
    if page is not None:
        refuse_input(page, paths)
    with progress_bar() as bar:
        found = timeline_of(paths, limits=limits, files=FileOptions(columns=columns, **options), progress=bar)
    if page is not None:
        write_text_atomically(page, timeline_html(found))
    if as_json:
        click.echo(found.model_dump_json(indent=2))
    else:
        show_timeline(found, Console())
    return found.exit_status


def refuse_input(page: Path, paths: Sequence[str]) -> None:
    """Before anything is read. Raises: UsageError if the page would be written over, or into, what is to be read."""
    target = page.resolve()
    for given in paths:
        for path in [Path(given), *map(Path, glob(given, recursive=True))]:
            run = path.parent if path.name in (STEPS_FILE, STATE_FILE) else path
            if _holds(run, target):
                raise UsageError(
                    f"--html {page}: is, or lies in, {given}, which is to be read and would be changed. Name a file "
                    "elsewhere."
                )


def _holds(path: Path, target: Path) -> bool:
    """Whether a file is the target, or a folder holds it, also through links."""
    if not path.exists():
        return False
    if target == path.resolve() or (path.is_dir() and target.is_relative_to(path.resolve())):
        return True
    if not target.exists():
        return False
    inside = path.rglob("*") if path.is_dir() else iter([path])
    return any(file.exists() and file.samefile(target) for file in inside)


def _limits(options: dict[str, Any]) -> Limits | None:
    """None if none is named: a monitor's run has its own."""
    source, mean_kl = options.pop("limits_source"), options.pop("mean_kl")
    if source is None and mean_kl is None:
        return None
    return load_limits(source or "strict", changes={} if mean_kl is None else {"mean_kl": mean_kl})
