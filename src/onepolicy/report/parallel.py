"""Layouts of one model on a terminal, 80 columns wide or more."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from onepolicy.records.parallel import LayoutResult, ParallelResult
from onepolicy.report.console import checks_table, headline, number
from onepolicy.visible import visible


def show_parallel(found: ParallelResult, console: Console) -> None:
    """Print the answer, one row for each layout, the checks, and what was compared."""
    console.print(headline(found.sentence, found.status), Text(), layouts_table(found.layouts), Text(), sep="\n")
    console.print(checks_table(found.verdicts), Text(), sep="\n")
    for one in found.layouts:
        for note in one.notes:
            console.print(Text(visible(f"{one.layout}: {note}"), style="dim"))
    compared = (
        f"{found.spec}: {found.sequences} sequences, {found.tokens:,} tokens x {found.vocabulary:,} logits in "
        f"{found.dtype}, {found.threads} thread{'' if found.threads == 1 else 's'} in each rank"
    )
    console.print(Text(visible(compared), style="dim"))


def layouts_table(layouts: tuple[LayoutResult, ...]) -> Table:
    """One row for each layout; d is the layout minus one process, in nats."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("layout")
    for name in ("ranks", "bitwise equal", "largest ulp", "mean |d|", "max |d|", "repeats"):
        table.add_column(name, justify="right")
    for one in layouts:
        table.add_row(Text(visible(one.layout)), str(one.ranks), *_cells(one))
    return table


def _cells(one: LayoutResult) -> tuple[str, ...]:
    values = (one.bitwise_share, one.max_ulp, one.mean_abs_d, one.max_abs_d)
    share, ulp, mean, largest = values
    if share is None or ulp is None or mean is None or largest is None:
        return ("not run", "-", "-", "-", "-")
    shown = "all" if share == 1.0 else f"{share:.1%}" if share < 0.9995 else f"{share:.6%}"
    return shown, f"{ulp:,}", number(mean), number(largest), "yes" if one.repeats else "no"
