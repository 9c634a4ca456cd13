"""How commands show their result and their progress."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from onepolicy.records.verdict import Judgement
from onepolicy.report.console import show


class Bar:
    """A progress bar on stderr; on something that is no terminal, one line at the start of each step."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task: TaskID | None = None

    def start(self, title: str, total: int, unit: str = "rollouts") -> None:
        """A step begins."""
        if not self._progress.console.is_terminal:
            click.echo(f"{title}: {f'{total / 1e6:,.1f} MB' if unit == 'bytes' else f'{total} {unit}'}", err=True)
        self._task = self._progress.add_task(title, total=total)

    def advance(self, count: int) -> None:
        """Some more are done."""
        if self._task is not None:
            self._progress.advance(self._task, count)

    def note(self, message: str) -> None:
        """Something that a person should know."""
        self._progress.console.print(message, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def progress_bar() -> Iterator[Bar]:
    """A bar for as long as the block runs."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        yield Bar(progress)


def finish(judgement: Judgement, *, as_json: bool) -> int:
    """Show a judgement on stdout; returns the exit status that follows from it."""
    if as_json:
        click.echo(judgement.model_dump_json(indent=2))
    else:
        show(judgement, Console())
    return judgement.exit_status
