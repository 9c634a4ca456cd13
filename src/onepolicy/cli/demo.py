"""`onepolicy demo`."""

from __future__ import annotations

import click
from rich.console import Console
from rich.rule import Rule

from onepolicy.cli.show import progress_bar
from onepolicy.report.console import show
from onepolicy.workflow.demo import demo as run_demo


@click.command(epilog="Exit status: 0 if the first comparison passes and the second fails, as they must; 1 if not.")
def demo() -> int:
    """Compare two real engines on a small real model.

    First the trainer with itself in padded batches, which passes. Then rollouts
    of llama.cpp with 4-bit weights with the same model de-quantised, which fails.
    """
    with progress_bar() as bar:
        results = run_demo(progress=bar)
    console = Console()
    for case, judgement in results:
        console.print(Rule(case.title, align="left", style="bold"))
        show(judgement, console)
        console.print()
    wrong = [case for case, judgement in results if judgement.status is not case.expected]
    for case in wrong:
        console.print(f"Unexpected: {case.title} should end in {case.expected.value}.")
    if not wrong:
        console.print("Both came out as they must: one pass, one fail.")
    return 1 if wrong else 0
