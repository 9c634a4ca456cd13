"""`onepolicy tokens history`."""

from __future__ import annotations

import click
from rich.console import Console

from onepolicy.cli.app import EXIT_STATUS_HELP
from onepolicy.cli.show import progress_bar
from onepolicy.report.history import show_history
from onepolicy.workflow.tokens_history import tokens_history


@click.command(epilog=EXIT_STATUS_HELP)
@click.argument("targets", metavar="TARGET...", nargs=-1, required=True)
@click.option("--tokenizer", default="", metavar="TOKENIZER", help="Of the ids; else the run's own.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def history(targets: tuple[str, ...], tokenizer: str, as_json: bool) -> int:
    """Does each call of a trajectory begin with what was sampled before it?

    Each prompt is held against the prompt and completion of the call before.
    Where it does not begin with these ids, the turn that broke is named, and
    why: the same text in other ids (retokenisation drift), or other text
    (template rewrite), with what was removed and added. Calls and turns count
    from 0.

    A TARGET is a run directory, in which rollouts of one trajectory_id, or
    spans of one rollout, are the calls; or a JSONL file with rows
    {"id": ..., "calls": [{"prompt_ids": [...], "completion_ids": [...]}, ...]}.
    A TOKENIZER is a folder, a tokenizer.json, a GGUF file, a hub id in the
    local cache, or a packaged model (smollm2).
    """
    with progress_bar() as bar:
        report = tokens_history(targets, tokenizer=tokenizer, progress=bar)
    if as_json:
        click.echo(report.model_dump_json(indent=2))
    else:
        show_history(report, Console())
    return report.exit_status
