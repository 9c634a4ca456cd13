"""The table of symptoms: on a terminal, 80 columns wide or more, and as a page."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from onepolicy.diagnosis.symptoms import LEGEND, Symptom

HEAD = """# Symptoms

<!-- written by docs/generate.py; change src/onepolicy/diagnosis/symptoms.yaml instead -->

What is seen, what it usually is, and what to run. The same on a terminal, searched by words:

```console
$ onepolicy symptoms "reward rises, eval falls"
$ onepolicy symptoms prefix cache
```
"""


def show_symptoms(rows: Sequence[Symptom], console: Console) -> None:
    """Print the rows, a command in a line of its own."""
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 1))
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row("seen", Text(row.sees, style="bold"))
        table.add_row("usually", Text(row.usually))
        table.add_row("run", Text(row.run, style="cyan"), end_section=True)
        table.add_row()
    console.print(table)
    console.print(Text(LEGEND, style="dim"))


def symptoms_page(rows: Sequence[Symptom]) -> str:
    """All rows as Markdown."""
    cells = (tuple(text.replace("|", "\\|") for text in (row.sees, row.usually, row.run)) for row in rows)
    lines = [f"| {sees} | {usually} | `{run}` |" for sees, usually, run in cells]
    head = "| seen | usually | run |\n|---|---|---|"
    return "\n".join([HEAD, f"{LEGEND[0].upper()}{LEGEND[1:]}", "", head, *lines, ""])
