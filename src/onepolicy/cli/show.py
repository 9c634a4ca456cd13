"""How commands show their result and their progress."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from onepolicy.records.run import Run
from onepolicy.records.verdict import Judgement
from onepolicy.report.console import show
from onepolicy.visible import visible
from onepolicy.workflow.judge import JudgeRequest


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


def finish(judgement: Judgement, *, as_json: bool, path: Path | None = None, name: str = JudgeRequest().name) -> int:
    """Show a judgement on stdout, and why it came out so if its run keeps that; returns its exit status.

    path: of the run, if it is no longer where it was judged. name: of the judgement inside the run.
    """
    if as_json:
        click.echo(judgement.model_dump_json(indent=2))
    else:
        _show(judgement, _answer(judgement, path or Path(judgement.run), name))
    return judgement.exit_status


def _answer(judgement: Judgement, path: Path, name: str) -> str:
    """The sentence of the diagnosis that is kept beside a judgement; empty if there is none, or no run."""
    if not judgement.run or not (path / "manifest.json").exists():
        return ""
    found = Run.open(path).diagnosis(name)
    return "" if found is None else visible(found.sentence)


def _show(judgement: Judgement, answer: str) -> None:
    console = Console()
    if not answer:
        show(judgement, console)
        return
    with console.capture() as judged:
        show(judgement, console)
    with console.capture() as found:
        console.print(Text(answer))
    verdict, rest = judged.get().split("\n\n", 1)  # the verdict is all that stands above the first empty line
    click.echo(f"{verdict}\n{found.get()}\n{rest}", nl=False)
