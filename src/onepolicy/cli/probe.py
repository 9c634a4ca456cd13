"""`onepolicy probe`."""

from __future__ import annotations

import click
from rich.console import Console

from onepolicy.cli.app import STAGE_EXIT_STATUS_HELP
from onepolicy.engines.spec import parse_spec
from onepolicy.report.probe import show_probe
from onepolicy.workflow.probe import probe as run_probe


@click.command(epilog=STAGE_EXIT_STATUS_HELP)
@click.argument("spec")
@click.option("--json", "as_json", is_flag=True, help="Print what was found as JSON.")
def probe(spec: str, as_json: bool) -> int:
    """Say what an engine is, what it can do and what its logprobs mean.

    Each answer comes from a request, not from documentation: about fifty short
    ones. A vLLM in developer mode has its prefix cache emptied.
    """
    found = run_probe(parse_spec(spec))
    if as_json:
        click.echo(found.model_dump_json(indent=2))
    else:
        show_probe(found, Console())
    return 0
