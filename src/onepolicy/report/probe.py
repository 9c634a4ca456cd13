"""What is known of an engine on a terminal, 80 columns wide or more."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from onepolicy.records.probe import Fact, Probe
from onepolicy.visible import visible

_STYLES = {"yes": "green", "no": "dim", "unknown": "yellow"}


def show_probe(probe: Probe, console: Console) -> None:
    """Print what the engine is, what its logprobs mean for each kind of call, and what it can do."""
    console.print(
        Group(
            _identity(probe),
            Text(),
            _facts("what a logprob means", probe.meanings),
            Text(),
            _facts("what it can do", probe.abilities),
        )
    )


def _identity(probe: Probe) -> Table:
    engine = probe.engine
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    shown = {
        "engine": f"{engine.name} {engine.version}",
        "model": engine.model,
        "dtype": engine.dtype,
        "max length": "unknown" if engine.max_length is None else str(engine.max_length),
        "vocabulary": "unknown" if engine.vocab_size is None else str(engine.vocab_size),
        "weight version": probe.weight_version or "not named",
    }
    for name, value in shown.items():
        table.add_row(name, Text(visible(value)))
    return table


def _facts(title: str, facts: Sequence[Fact]) -> Group:
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold", max_width=22)
    table.add_column(overflow="fold", style="dim")
    for fact in facts:
        table.add_row(
            fact.name, Text(visible(fact.answer), style=_STYLES.get(fact.answer, "")), Text(visible(fact.how))
        )
    return Group(Text(title, style="bold"), table)
