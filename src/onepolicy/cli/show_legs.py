"""What `onepolicy check --legs` says of the legs of both sides."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console

from onepolicy.cli.show import finish, progress_bar
from onepolicy.numerics.legs.ladder import Ladder
from onepolicy.records.strict import Strict
from onepolicy.records.verdict import Judgement, Status
from onepolicy.report.legs import show
from onepolicy.workflow.legs_pair import PairRequest, legs_of_pair

_WORST_FIRST = (Status.FAIL, Status.UNKNOWN, Status.PASS)


class WithLegs(Strict):
    """What `check --legs --json` prints."""

    judgement: Judgement
    ladders: tuple[Ladder, ...]
    """of the rollout side, its last leg the step to the trainer, and of the trainer"""


def finish_with_legs(judgement: Judgement, pair: PairRequest, *, as_json: bool) -> int:
    """Show a judgement, climb the legs of both sides on its run, and show them too; returns the worst exit status."""
    if not as_json:
        finish(judgement, as_json=False)
    with progress_bar() as bar:
        ladders = legs_of_pair(pair, path=Path(judgement.run), progress=bar)
    if as_json:
        click.echo(WithLegs(judgement=judgement, ladders=ladders).model_dump_json(indent=2))
    for ladder in () if as_json else ladders:
        click.echo()
        show(ladder, Console())
    statuses = {judgement.status, *(ladder.status for ladder in ladders)}
    return next(status for status in _WORST_FIRST if status in statuses).exit_status
