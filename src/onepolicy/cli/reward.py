"""`onepolicy reward`."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console

from onepolicy.cli.app import EXIT_STATUS_HELP
from onepolicy.cli.show import progress_bar
from onepolicy.report.reward import show_reward
from onepolicy.workflow.reward import RewardRequest, check_reward


@click.command(epilog=EXIT_STATUS_HELP)
@click.argument("model")
@click.option("--served", default="", metavar="URL|SPEC", help="The same reward model as a server has it.")
@click.option(
    "--pairs",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="JSONL with prompt, chosen and rejected answer; twelve in seven languages by default.",
)
@click.option("--judge", default="", metavar="SOURCE", help="What a generative judge is asked with; see `protocol`.")
@click.option("--protocol", default="", metavar="SOURCE", help="What it should be asked with.")
@click.option("--json", "as_json", is_flag=True, help="Print the checks as JSON.")
def reward(model: str, served: str, pairs: Path | None, judge: str, protocol: str, as_json: bool) -> int:
    """Is a reward model a sound signal, and the served one the same?

    MODEL is a folder, a hub id, transformers:FOLDER?dtype=bfloat16,
    callable:MODULE:FUNCTION, callable:FILE.py:FUNCTION, vllm:URL,
    sglang:URL?tokenizer=FOLDER, or the URL of an endpoint that takes
    {"input": [...]}. ?label=N says which of several outputs is the reward,
    ?max_length=N how many tokens it takes (docs/reward.md).

    Padding, neighbours in the batch and precision must not move its score; the
    last answer and its end must. Whether length alone does is measured. What
    cannot be looked at, such as the padding of a server, is said.
    """
    request = RewardRequest(model=model, served=served, pairs=pairs, judge=judge, protocol=protocol)
    with progress_bar() as bar:
        found = check_reward(request, progress=bar)
    if as_json:
        click.echo(found.model_dump_json(indent=2))
    else:
        show_reward(found, Console())
    return found.exit_status
