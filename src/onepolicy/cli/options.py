"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from pydantic import ValidationError

from onepolicy.errors import UsageError
from onepolicy.judgement.limits import Limits
from onepolicy.judgement.load import PRESETS, load_limits
from onepolicy.records.json_text import number_in
from onepolicy.records.protocol import COMMON_FIELDS, SamplingProtocol

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

json_option = click.option("--json", "as_json", is_flag=True, help="Print the judgement as JSON.")
resume_option = click.option("--resume", is_flag=True, help="Go on with the run at --run; what it has is kept.")
extend_option = click.option(
    "--extend", is_flag=True, help="Add to the complete run at --run what it lacks of the suite and budget."
)
run_argument = click.argument("run", type=click.Path(path_type=Path, file_okay=False))
suite_option = click.option(
    "--suite",
    default="quick",
    show_default=True,
    help="quick, standard, fixed-quick, fixed-standard, or a JSONL file.",
)
statistics_option = click.option("--statistics", is_flag=True, help="Keep per-token statistics for offline diagnosis.")


class _Number(click.types.FloatParamType):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found: float = super().convert(value, param, ctx)
        return number_in(value) if isinstance(value, str) and found == 0.0 else found


NUMBER = _Number()
"""a number that is 0 only where 0 is written"""


def together(*options: Decorator) -> Decorator:
    """Several options as one decorator, shown in this order."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


sampling_options = together(
    click.option("--temperature", type=NUMBER, default=1.0, show_default=True, help="0 is greedy."),
    click.option("--top-p", default=1.0, show_default=True, help="1 is off."),
    click.option("--top-k", default=0, show_default=True, help="0 is off."),
    click.option("--min-p", type=NUMBER, default=0.0, show_default=True, help="0 is off."),
    click.option("--max-new-tokens", default=64, show_default=True, help="Longest completion."),
    click.option("--samples-per-prompt", default=1, show_default=True, help="Completions of each prompt."),
    click.option("--seed", default=0, show_default=True, help="Of the sampling; each rollout gets one of its own."),
)
protocol_option = click.option(
    "--protocol",
    "protocol_source",
    metavar="SOURCE",
    help="Sample as this says: sampling_config.yaml, a lock, or another source of `onepolicy protocol`. The sampling "
    "options that are given go over it.",
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
    click.option(
        "--limits",
        "limits_source",
        default="strict",
        show_default=True,
        metavar="PRESET|FILE",
        help=f"{', '.join(PRESETS)}, or a YAML file; the options below go over it.",
    ),
    *(
        click.option(f"--{name.replace('_', '-')}", type=float, help=Limits.model_fields[name].description)
        for name in Limits.numbers()
    ),
)
"""a preset or a file, and one option for each limit that is a number, under its own name"""


def protocol_from(options: dict[str, Any]) -> SamplingProtocol:
    """Take the sampling options, and what they go over, out of a command's options.

    Raises: UsageError for a value out of range, or a source that does not say all of a protocol.
    """
    values = {name: options.pop(name) for name in COMMON_FIELDS}
    source = options.pop("protocol_source", None)
    if source is not None:
        from onepolicy.workflow.protocol import whole_protocol  # noqa: PLC0415 - slow to import, and seldom asked for

        values = whole_protocol(source).model_dump() | typed(values)
    try:
        return SamplingProtocol(**values)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        why = first["msg"].removeprefix("Value error, ")
        raise UsageError(f"{name} = {first['input']!r}: {why}." if name else f"{why}.") from error


def typed(options: dict[str, Any]) -> dict[str, Any]:
    """The options of the command that runs which somebody typed; a default must not go over a file."""
    context = click.get_current_context()
    return {n: v for n, v in options.items() if context.get_parameter_source(n) is ParameterSource.COMMANDLINE}


def limits_from(options: dict[str, Any]) -> Limits:
    """Take the limit options out of a command's options. Raises UsageError for a value out of range."""
    return load_limits(options.pop("limits_source"), changes=limit_changes(options))


def limit_changes(options: dict[str, Any]) -> dict[str, float]:
    """Take the limits that are one number each out of a command's options; those that were given."""
    given = {name: options.pop(name) for name in Limits.numbers()}
    return {name: value for name, value in given.items() if value is not None}
