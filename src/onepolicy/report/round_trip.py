"""Tokens that do not come back, on a terminal, 80 columns wide or more."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from onepolicy.records.token_breaks import RoundTripReport, ShownBreak, ShownPiece, Way
from onepolicy.report.console import STYLES, number
from onepolicy.visible import visible

WAYS: dict[Way, str] = {
    "ids": "ids -> text -> ids",
    "text": "text -> ids -> text",
    "reading": "text of the same ids",
}
SIDES: dict[Way, tuple[str, str]] = {
    "ids": ("sampled", "encoded"),
    "text": ("before", "after"),
    "reading": ("sampling", "scoring"),
}
"""what the two spellings are called"""
_SHOWN = 3
_PIECES = 6


def show_round_trip(report: RoundTripReport, console: Console) -> None:
    """Print the answer, how many by which cause, and the first few places with both spellings and their bytes."""
    word, _, rest = visible(report.sentence).partition(":")
    parts: list[RenderableType] = [Text.assemble((f"{word}:", f"bold {STYLES[report.status]}"), rest)]
    parts.append(Text(visible(f"sampling side {report.sampling}, scoring side {report.scoring}"), style="dim"))
    if report.empty:
        parts.append(Text(f"{report.empty:,} rollouts have neither a token nor a text and were not checked."))
    if report.broken:
        parts += [Text(), _causes(report)]
    for way in WAYS:
        for broken in [b for b in report.breaks if b.way == way][:_SHOWN]:
            parts += [Text(), _break(broken)]
    console.print(Group(*parts))


def _causes(report: RoundTripReport) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("way")
    table.add_column("cause")
    table.add_column("rollouts", justify="right")
    for way, label in WAYS.items():
        for cause, count in sorted(report.causes[way].items(), key=lambda item: -item[1]):
            table.add_row(label, cause, f"{count:,}")
    return table


def _break(broken: ShownBreak) -> Group:
    shifted = f", {number(100 * broken.shifted)} % of its tokens stand elsewhere" if broken.way == "ids" else ""
    lines: list[RenderableType] = [
        Text.assemble(
            (visible(broken.rollout), "bold"),
            f" at {broken.counts.removesuffix('s')} {broken.position}: {broken.cause}{shifted}",
        )
    ]
    if broken.seen:
        lines.append(Padding(Text(visible(broken.seen)), (0, 0, 0, 2)))
    first, second = SIDES[broken.way]
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for label, pieces in ((first, broken.first), (second, broken.second)):
        table.add_row(label, Text(spelled(pieces), style="bold"))
        table.add_row("", Text(bytes_of(pieces), style="dim"))
    lines += [Padding(table, (0, 0, 0, 2)), Padding(Text(visible(broken.advice)), (0, 0, 0, 2))]
    return Group(*lines)


def spelled(pieces: tuple[ShownPiece, ...]) -> str:
    """The pieces with a bar between them; by id where no text is shown."""
    return " | ".join(visible(p.text) or f"<{p.id}>" for p in pieces[:_PIECES]) or "(nothing)"


def bytes_of(pieces: tuple[ShownPiece, ...]) -> str:
    """Their bytes in hexadecimal, with a bar between tokens."""
    return " | ".join(p.bytes for p in pieces[:_PIECES] if p.bytes)
