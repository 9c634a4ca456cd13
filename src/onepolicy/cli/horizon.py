"""`onepolicy horizon`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.console import Console

from onepolicy.cli.app import EXIT_STATUS_HELP
from onepolicy.cli.options import run_argument
from onepolicy.cli.show import progress_bar
from onepolicy.report.horizon import show_horizon
from onepolicy.workflow.horizon import HorizonRequest
from onepolicy.workflow.horizon import horizon as horizon_of
from onepolicy.workflow.record import ROLLOUT
from onepolicy.workflow.score import TRAINER


@click.command(epilog=EXIT_STATUS_HELP)
@run_argument
@click.option(
    "--tokens",
    type=click.IntRange(min=1),
    metavar="INTEGER",
    help="The horizon; at most 8 times the measured length, which is taken if not given.",
)
@click.option(
    "--band", nargs=2, type=float, default=(0.5, 2.0), show_default=True, metavar="LOW HIGH", help="Of sequence ratios."
)
@click.option(
    "--most-outside",
    type=float,
    metavar="SHARE",
    help="Limit of the share of sequence ratios outside the band; without it the share is shown and decides nothing.",
)
@click.option("--rollout", default=ROLLOUT, show_default=True, help="The reading of the rollout side.")
@click.option("--trainer", default=TRAINER, show_default=True, help="The reading of the trainer side.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def horizon(run: Path, as_json: bool, **options: Any) -> int:
    """What does the mismatch of a run add up to over a long rollout?

    Any mismatch makes the log of the sequence ratio drift by -KL per token and
    spread like the square root of the length. What fails is what adds up
    beyond that: a drift that no KL explains, or a bias that a rollout keeps.
    The share of sequence ratios outside a band is extrapolated with an
    interval, to no more than 8 times what was measured.
    """
    with progress_bar() as bar:
        found = horizon_of(run, HorizonRequest(**options), progress=bar)
    if as_json:
        click.echo(found.model_dump_json(indent=2))
    else:
        show_horizon(found, Console())
    return found.exit_status
