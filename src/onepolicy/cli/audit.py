"""`onepolicy audit`."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from onepolicy.cli.app import EXIT_STATUS_HELP
from onepolicy.cli.options import run_argument
from onepolicy.cli.show import progress_bar
from onepolicy.report.console import checks_table, headline
from onepolicy.visible import visible
from onepolicy.workflow.audit import Audit, AuditRequest
from onepolicy.workflow.audit import audit as run_audit

positive = click.IntRange(min=1)


@click.command(epilog=EXIT_STATUS_HELP)
@run_argument
@click.option("--stop", multiple=True, metavar="TEXT", help="A string that should end a completion; may be repeated.")
@click.option(
    "--end",
    "ends",
    multiple=True,
    type=click.IntRange(min=0),
    metavar="ID",
    help="A token that ends a completion, instead of those that the tokenizer names; may be repeated.",
)
@click.option("--max-new-tokens", type=positive, metavar="INTEGER", help="Longest completion, if not the protocol's.")
@click.option("--samples-per-prompt", type=positive, metavar="INTEGER", help="Completions of each prompt, likewise.")
@click.option("--json", "as_json", is_flag=True, help="Print the audit as JSON.")
def audit(
    run: Path,
    stop: tuple[str, ...],
    ends: tuple[int, ...],
    max_new_tokens: int | None,
    samples_per_prompt: int | None,
    as_json: bool,
) -> int:
    """Look for odd lengths, stops and seeds in a run's rollouts.

    Finish reasons against the last token, stop strings and end tokens inside
    a completion, what a length limit counts, prompts that were cut, samples
    that coincide. Needs no engine.
    """
    request = AuditRequest(stop=stop, ends=ends, max_new_tokens=max_new_tokens, samples_per_prompt=samples_per_prompt)
    with progress_bar() as bar:
        found = run_audit(run, request, progress=bar)
    if as_json:
        click.echo(found.model_dump_json(indent=2))
    else:
        show(found, Console())
    return found.exit_status


def show(found: Audit, console: Console) -> None:
    """Print the answer, the checks, and how much was looked at."""
    looked = f"run {visible(found.run)}: {found.rollouts:,} rollouts, {found.calls:,} calls, {found.tokens:,} tokens"
    console.print(headline(found.sentence, found.status), Text(), checks_table(found.verdicts), Text(), sep="\n")
    console.print(Text(looked, style="dim"))
