"""Protocols, their differences and consequences on a terminal, 80 columns wide or more."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from onepolicy.records.protocol import SamplingProtocol
from onepolicy.records.yaml_file import in_one_line
from onepolicy.sampling.consequence import Consequence
from onepolicy.sampling.convert import Note, ReadProtocol
from onepolicy.sampling.diff import Difference
from onepolicy.visible import visible

_CERTAINTY = {"exact": "green", "bounded": "yellow", "not known": "yellow"}


def show_protocol(source: str, read: ReadProtocol, console: Console) -> None:
    """Print every field with where its value is from, and what is no part of the protocol."""
    console.print(Text(visible(f"{source}: protocol {read.protocol.hash}"), style="bold"))
    table = _table()
    values = read.protocol.model_dump(mode="json")
    for name in SamplingProtocol.model_fields:
        style = "" if name in read.protocol.changed else "dim"
        value = Text(visible(in_one_line(values[name])), style=style)
        table.add_row(Text(name, style=style), value, Text(visible(read.sources.get(name, "")), style="dim"))
    console.print(table)
    show_notes("not part of the protocol", read.ignored, console)


def show_differences(found: Iterable[Difference], names: tuple[str, str], console: Console) -> None:
    """Print each field that differs with both values, and why it matters."""
    for one in found:
        line = Text.assemble((one.field, "bold" if one.matters else "dim"))
        line.append(visible(f"  {_shown(one.a)} in {names[0]}, {_shown(one.b)} in {names[1]}"))
        line.append("" if one.matters else "  (does not matter)", style="dim")
        console.print(line, soft_wrap=True)
        console.print(Padding(Text(one.why, style="dim"), (0, 0, 0, 4)))


def show_consequences(found: Iterable[Consequence], console: Console) -> None:
    """Print each figure with whether it is exact, bounded or not known."""
    table = _table()
    for one in found:
        sentence = Text.assemble((f"{one.field}  ", "bold"), visible(one.sentence))
        table.add_row(Text(one.certainty, style=_CERTAINTY[one.certainty]), sentence)
    if table.rows:
        console.print(table)


def show_notes(title: str, notes: Iterable[Note], console: Console) -> None:
    """Print what did not make it into a protocol, or out of one."""
    for number, note in enumerate(notes):
        if number == 0:
            console.print(Text(title, style="bold"))
        style = "yellow" if note.matters else "dim"
        console.print(Text(visible(f"  {note.field} = {note.value}: {note.why}"), style=style))


def show_lost(notes: Iterable[Note], console: Console) -> None:
    """Print what a framework's configuration cannot say: what is used first, then the names of what is not."""
    found = tuple(notes)
    show_notes("lost", (note for note in found if not note.is_unused), console)
    unused = [note.field for note in found if note.is_unused]
    if unused:
        console.print(Text(f"at their default, nothing to say: {', '.join(unused)}", style="dim"), soft_wrap=True)


def _table() -> Table:
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_column(overflow="fold")
    return table


def _shown(value: object) -> str:
    plain = value.model_dump(mode="json") if hasattr(value, "model_dump") else value
    return in_one_line(list(plain) if isinstance(plain, tuple) else plain)
