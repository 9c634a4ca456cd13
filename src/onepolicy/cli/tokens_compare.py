"""`onepolicy tokens compare`."""

from __future__ import annotations

import json
from dataclasses import asdict

import click
from rich.console import Console

from onepolicy.report.tokenizers import show_comparison
from onepolicy.tokens.compare import TokenizerComparison
from onepolicy.workflow.tokens_servers import compare_targets


@click.command(epilog="Exit status: 0 the same, 1 different, 2 could not run, 130 interrupted.")
@click.argument("a")
@click.argument("b")
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON.")
def compare(a: str, b: str, as_json: bool) -> int:
    """Say in what two tokenizers differ, and show the shortest text found.

    A and B are folders with a tokenizer.json, such files, GGUF files, hub ids
    in the local cache, or a packaged model (smollm2). Nothing is downloaded,
    no tensor is read and no code of a model runs.

    Their parts are compared in a form that does not depend on how they are
    stored, then both encode probes of many classes of text. Versions are shown
    and decide nothing.

    A or B may be a live server, as vllm:http://host:port or
    llamacpp:http://host:port. Of that only the ids and texts that it answers
    with are known, so these alone are compared.
    """
    comparison = compare_targets(a, b)
    if as_json:
        click.echo(_as_json(comparison))
    else:
        show_comparison(comparison, Console())
    return comparison.exit_status


def _as_json(comparison: TokenizerComparison) -> str:
    answer = {"same": comparison.same, "exit_status": comparison.exit_status, "sentence": comparison.sentence}
    return json.dumps(answer | asdict(comparison), indent=2)
