"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from pydantic import ValidationError

from onepolicy.errors import UsageError
from onepolicy.judgement.limits import Limits
from onepolicy.records.protocol import SamplingProtocol

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

json_option = click.option("--json", "as_json", is_flag=True, help="Print the judgement as JSON.")
resume_option = click.option("--resume", is_flag=True, help="Go on with the run at --run; what it has is kept.")
run_argument = click.argument("run", type=click.Path(path_type=Path, file_okay=False))
suite_option = click.option(
    "--suite",
    default="quick",
    show_default=True,
    help="quick, standard, fixed-quick, fixed-standard, or a JSONL file.",
)
statistics_option = click.option("--statistics", is_flag=True, help="Keep per-token statistics for offline diagnosis.")


def together(*options: Decorator) -> Decorator:
    """Several options as one decorator, shown in this order."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


sampling_options = together(
    click.option("--temperature", default=1.0, show_default=True, help="0 is greedy."),
    click.option("--top-p", default=1.0, show_default=True, help="1 is off."),
    click.option("--top-k", default=0, show_default=True, help="0 is off."),
    click.option("--min-p", default=0.0, show_default=True, help="0 is off."),
    click.option("--max-new-tokens", default=64, show_default=True, help="Longest completion."),
    click.option("--samples-per-prompt", default=1, show_default=True, help="Completions of each prompt."),
    click.option("--seed", default=0, show_default=True, help="Of the sampling; each rollout gets one of its own."),
)
recording_options = together(
    click.option(
        "--budget",
        type=click.IntRange(min=1),
        metavar="INTEGER",
        help="Completion tokens at most; the suite's last prompts are left out.",
    ),
    click.option(
        "--top",
        type=click.IntRange(min=0),
        metavar="INTEGER",
        default=20,
        show_default=True,
        help="Most likely tokens to keep at each position; 0 is none.",
    ),
    click.option("--no-text", is_flag=True, help="Keep and show no text. Token ids and the tokenizer stay in the run."),
    statistics_option,
)
limit_options = together(
    *(
        click.option(f"--{name.replace('_', '-')}", default=field.default, show_default=True, help=field.description)
        for name, field in Limits.model_fields.items()
    )
)
"""one for each limit, under its own name"""


def protocol_from(options: dict[str, Any]) -> SamplingProtocol:
    """Take the sampling options out of a command's options. Raises UsageError for a value out of range."""
    values = {name: options.pop(name) for name in SamplingProtocol.model_fields}
    return _valid(SamplingProtocol, values)  # type: ignore[return-value]


def limits_from(options: dict[str, Any]) -> Limits:
    """Take the limit options out of a command's options. Raises UsageError for a value out of range."""
    return _valid(Limits, {name: options.pop(name) for name in Limits.model_fields})  # type: ignore[return-value]


def _valid(model: type[SamplingProtocol] | type[Limits], values: dict[str, Any]) -> SamplingProtocol | Limits:
    try:
        return model(**values)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        raise UsageError(f"{name} = {first['input']!r}: {first['msg']}.") from error
