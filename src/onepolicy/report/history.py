"""Histories that are not what was sampled, on a terminal, 80 columns wide or more."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from onepolicy.records.token_breaks import HistoryReport, ShownHistoryBreak
from onepolicy.report.console import headline
from onepolicy.report.round_trip import bytes_of, spelled
from onepolicy.visible import visible

_SHOWN = 5


def show_history(report: HistoryReport, console: Console) -> None:
    """Print the answer, how many by which kind and cause, and the first few turns with what became of them."""
    parts: list[RenderableType] = [headline(report.sentence, report.status)]
    parts.append(Text(visible(f"tokenizer {report.tokenizer}"), style="dim"))
    if report.unchecked:
        parts.append(Text(visible(f"{report.unchecked:,} trajectories not checked; {report.why_unchecked}.")))
    if report.alone:
        parts.append(Text(f"{report.alone:,} trajectories have fewer than two calls, so no history."))
    if report.causes:
        parts += [Text(), _causes(report)]
    for broken in report.breaks[:_SHOWN]:
        parts += [Text(), _break(broken)]
    console.print(Group(*parts))


def _causes(report: HistoryReport) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("kind")
    table.add_column("cause")
    table.add_column("turns", justify="right")
    for kind, causes in report.causes.items():
        for cause, count in sorted(causes.items(), key=lambda item: -item[1]):
            table.add_row(kind, cause, f"{count:,}")
    return table


def _break(broken: ShownHistoryBreak) -> Group:
    title = Text.assemble(
        (visible(broken.trajectory), "bold"), f", call {broken.call}, {broken.where}: {broken.kind} ({broken.cause})"
    )
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for label, text in (("removed", broken.removed), ("added", broken.added)):
        if text:
            table.add_row(label, Text(visible(text), style="bold"))
    for label, pieces in (("sampled", broken.first), ("sent", broken.second)):
        table.add_row(label, Text(spelled(pieces), style="bold"))
        if any(piece.bytes for piece in pieces):
            table.add_row("", Text(bytes_of(pieces), style="dim"))
    lines: list[RenderableType] = [title]
    if broken.seen:
        lines.append(Padding(Text(visible(broken.seen)), (0, 0, 0, 2)))
    return Group(*lines, Padding(table, (0, 0, 0, 2)), Padding(Text(visible(broken.advice)), (0, 0, 0, 2)))
