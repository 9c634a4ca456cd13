"""`onepolicy impact`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.console import Console

from onepolicy.cli.app import STAGE_EXIT_STATUS_HELP
from onepolicy.cli.options import run_argument
from onepolicy.cli.show import progress_bar
from onepolicy.report.impact import show_impact
from onepolicy.workflow.impact import ImpactRequest
from onepolicy.workflow.impact import impact as impact_of
from onepolicy.workflow.record import ROLLOUT
from onepolicy.workflow.score import TRAINER


@click.command(epilog=STAGE_EXIT_STATUS_HELP)
@run_argument
@click.option("--epsilon", type=float, default=0.2, show_default=True, help="Of the clip range 1 - E to 1 + E.")
@click.option("--epsilon-high", type=float, metavar="FLOAT", help="Above 1, if it is another one there.")
@click.option("--rollout", default=ROLLOUT, show_default=True, help="The reading of the rollout side.")
@click.option("--trainer", default=TRAINER, show_default=True, help="The reading of the trainer side.")
@click.option("--updated", metavar="NAME", help="A reading of the trainer after an update.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def impact(run: Path, as_json: bool, **options: Any) -> int:
    """What does the mismatch of a run do to PPO or GRPO training on it?

    Tokens that the clip takes out before any update, effective sample size of
    the importance weights, what a KL term shows beside the truth, sequence
    ratios; and TIS, MIS, IcePop, geometric and k-estimator masks replayed on
    the recorded tokens, with the options of verl and TRL that choose them.
    Decides nothing.
    """
    with progress_bar() as bar:
        found = impact_of(run, ImpactRequest(**options), progress=bar)
    if as_json:
        click.echo(found.model_dump_json(indent=2))
    else:
        show_impact(found, Console())
    return 0
