"""What a command that ends with 1 says of the way back."""

from __future__ import annotations

from pathlib import Path

import click

from onepolicy.records.run import Run
from onepolicy.records.verdict import Status
from onepolicy.workflow.green import way_back


def say_way_back(status: Status, run: Path) -> None:
    """On stderr: how to write back the last green protocol beside a run that failed, if there is one."""
    if status is not Status.FAIL:
        return
    folder = run.parent.parent if run.name == "b" else run.parent
    line = way_back(folder, Run.open(run).manifest.protocol)
    if line is not None:
        click.echo(line, err=True)
