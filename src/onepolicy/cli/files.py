"""Options of the commands that read recorded files."""

from __future__ import annotations

import click

from onepolicy.errors import UsageError
from onepolicy.integrations import FORMATS

format_option = click.option(
    "--format",
    "format_name",
    metavar="NAME",
    type=click.Choice(list(FORMATS)),
    help=f"If the content does not say it: {', '.join(FORMATS)}.",
)
columns_option = click.option(
    "--columns",
    metavar="OURS=THEIRS,...",
    help="Names of the columns in plain Parquet or JSONL, e.g. trainer_logprobs=old_log_probs.",
)


def columns_from(text: str | None) -> dict[str, str]:
    """Our name -> theirs, from the text of the option. Raises UsageError if a part is no pair."""
    pairs = [part.partition("=") for part in (text or "").split(",") if part.strip()]
    if any(not (ours.strip() and theirs.strip()) for ours, _, theirs in pairs):
        example = "rollout_logprobs=vllm_logprobs,trainer_logprobs=old_log_probs"
        raise UsageError(f"--columns {text!r}: write our name, '=' and theirs, with ',' between: {example}")
    return {ours.strip(): theirs.strip() for ours, _, theirs in pairs}
