"""`onepolicy symptoms`."""

from __future__ import annotations

import json

import click
from rich.console import Console

from onepolicy.diagnosis.symptoms import Symptom, search
from onepolicy.report.symptoms import show_symptoms
from onepolicy.visible import visible

NOTHING_FOUND = 3
"""exit status: nothing is known, as of every command"""


@click.command(epilog="Exit status: 0 found, 2 could not run, 3 no symptom has these words, 130 interrupted.")
@click.argument("words", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="Print the rows as JSON.")
def symptoms(words: tuple[str, ...], as_json: bool) -> int:
    """What you see, what it usually is, and what to run.

    \b
      onepolicy symptoms "reward rises, eval falls"

    WORDS may be typed wrongly, and in any order; those that fit best come first.
    Without words all symptoms are shown. Needs no run and no engine.
    """
    rows = search(" ".join(words))
    _show(rows, as_json=as_json)
    if rows:
        return 0
    click.echo(
        f"onepolicy: no symptom has these words: {visible(' '.join(words))}. Use others, or look through all with: "
        "onepolicy symptoms",
        err=True,
    )
    return NOTHING_FOUND


def _show(rows: list[Symptom], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps([row.model_dump() for row in rows], indent=2, ensure_ascii=False))
    elif rows:
        show_symptoms(rows, Console())
