"""`onepolicy calibrate`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from onepolicy.cli.app import STAGE_EXIT_STATUS_HELP
from onepolicy.cli.options import resume_option
from onepolicy.cli.show import progress_bar
from onepolicy.engines.spec import parse_spec
from onepolicy.records.floor import FLOORS, Floor
from onepolicy.report.console import number
from onepolicy.visible import visible
from onepolicy.workflow.calibrate import SUITE, CalibrateRequest
from onepolicy.workflow.calibrate import calibrate as run_calibrate


@click.command(epilog=STAGE_EXIT_STATUS_HELP)
@click.option("--engine", required=True, metavar="SPEC", help="The engine that scores, as for --trainer of check.")
@click.option(
    "--suite",
    metavar="NAME|FILE",
    help=f"Fixed sequences to score; {SUITE} if not given. Not for an engine that cannot encode text.",
)
@click.option(
    "--budget",
    type=click.IntRange(min=1),
    metavar="INTEGER",
    help="Completion tokens at most; the suite's last sequences are left out.",
)
@click.option(
    "--run",
    "path",
    type=click.Path(path_type=Path, file_okay=False),
    help="A recorded run, whose rollouts are then scored; or where the suite is recorded, a new folder under runs/ if "
    "not given.",
)
@click.option("--name", default="floor", show_default=True, help="Readings in the run are called NAME-base and so on.")
@resume_option
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="Where the floor is written, as JSON; a limits file names it.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the floor as JSON.")
def calibrate(engine: str, path: Path | None, resume: bool, as_json: bool, **options: Any) -> int:
    """Measure how far an engine differs from itself.

    The same tokens are scored again, in another order, in batches of another
    size and padded on the other side. What differs then is noise; limits may be
    a multiple of it (`mean_kl: 3 x floor`), as long as nothing else changes.
    """
    request = CalibrateRequest(engine=parse_spec(engine), **options)
    with progress_bar() as bar:
        floor = run_calibrate(request, path=path, resume=resume, progress=bar)
    if as_json:
        click.echo(floor.model_dump_json(indent=2))
    else:
        show(floor, Console())
        click.echo(f"\nwritten to {request.output}")
    return 0


def show(floor: Floor, console: Console) -> None:
    """Print the variations, d by confidence, and what a limit may be a multiple of."""
    console.print(Text(visible(_title(floor)), style="bold"))
    console.print(Text(), variations_table(floor), Text(), confidence_table(floor), Text(), sep="\n")
    for line in _floor_lines(floor):
        console.print(Text(visible(line)))


def _title(floor: Floor) -> str:
    engine, first = floor.engine, floor.variations[0]
    return (
        f"noise floor of {engine.name}:{engine.model} in {engine.dtype} on {engine.device}, {first.tokens:,} tokens of "
        f"{first.prompts} prompts ({floor.suite})"
    )


def variations_table(floor: Floor) -> Table:
    """One row for each variation; d is the variation minus the base, in nats."""
    table = _table("variation", "mean k3", "worst rollout k3", "mean |d|", "max |d|", "bitwise equal")
    for one in floor.variations:
        values = (one.mean_k3, one.worst_rollout_k3, one.mean_abs_d, one.max_abs_d)
        table.add_row(Text(visible(one.name)), *map(number, values), f"{one.bitwise_share:.1%}")
    return table


def confidence_table(floor: Floor) -> Table:
    """Root mean square of d of each variation, by the probability of the token."""
    table = _table("probability", "tokens", *(f"rms d, {visible(one.name)}" for one in floor.variations))
    rows = {(b.low, b.high): b.tokens for one in floor.variations for b in one.by_confidence}
    for low, high in sorted(rows):
        found = [next((b for b in one.by_confidence if b.low == low), None) for one in floor.variations]
        cells = ["-" if bucket is None else number(bucket.rms_d) for bucket in found]
        table.add_row(f"{low:g} to {high:g}", f"{rows[low, high]:,}", *cells)
    return table


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(first)
    for name in others:
        table.add_column(name, justify="right")
    return table


def _floor_lines(floor: Floor) -> list[str]:
    lines = [f"{name} floor {number(getattr(floor, name).value)} ({getattr(floor, name).variation})" for name in FLOORS]
    without = [f"{one.name} {one.tokens_without:,}" for one in floor.variations if one.tokens_without]
    lines += [f"tokens without a logprob: {', '.join(without)}"] if without else []
    return [*lines, f"this engine has no {', '.join(floor.absent)}"] if floor.absent else lines
