"""`onepolicy behave`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from pydantic import ValidationError
from rich.console import Console

from onepolicy.behaviour.compare import SUCCESS
from onepolicy.behaviour.limits import BehaviourLimits
from onepolicy.cli.app import EXIT_STATUS_HELP
from onepolicy.cli.behave_protocol import texts_and_samples
from onepolicy.cli.green import say_way_back
from onepolicy.cli.options import together
from onepolicy.cli.show import progress_bar
from onepolicy.errors import UsageError
from onepolicy.report.behave import show_behaviour
from onepolicy.workflow.behave import BehaveOptions, function_named, record_and_behave
from onepolicy.workflow.behave import behave as behave_of
from onepolicy.workflow.behave_record import BehaveRequest, protocols
from onepolicy.workflow.check import new_run_path

_RECORDING = ("engine_a", "engine_b", "a", "b", "suite", "prompts", "samples", "path", "resume")

recording_options = together(
    click.option("--engine-a", metavar="SPEC", help="Samples as A, for example the trainer's own generation."),
    click.option(
        "--a", multiple=True, metavar="NAME=VALUE|FILE", help="A's sampling: temperature=0.7, or a protocol; repeat it."
    ),
    click.option("--engine-b", metavar="SPEC", help="Samples as B, for example the server; A's engine if not given."),
    click.option(
        "--b", multiple=True, metavar="NAME=VALUE|FILE", help="B's sampling; its seed is A's plus 1 unless given."
    ),
    click.option("--suite", metavar="NAME|FILE", help="quick, standard, or a JSONL file of prompts.  [default: quick]"),
    click.option("--prompts", type=click.IntRange(min=1), metavar="INTEGER", help="So many of the suite; default all."),
    click.option("--samples", type=click.IntRange(min=1), metavar="INTEGER", help="Of each prompt.  [default: 4]"),
    click.option(
        "--run", "path", type=click.Path(path_type=Path), help="Where both runs are kept; new under runs/ by default."
    ),
    click.option("--resume", is_flag=True, help="Go on with the runs at --run; what they have is kept."),
)
looking_options = together(
    click.option(
        "--keyword", "keywords", multiple=True, metavar="TEXT", help="How many completions have it; repeat it."
    ),
    click.option("--parse", metavar="REGEX", help="How many completions hold a match."),
    click.option("--parse-with", metavar="MODULE:FUNCTION", help="The same by function(completion) -> bool."),
    click.option(
        "--reward", metavar="MODULE:FUNCTION", help="function(prompt, completion) -> float; default: the runs'."
    ),
    click.option("--success", default=SUCCESS, show_default=True, help="Reward from which on a completion succeeds."),
)
threshold_options = together(
    *(
        click.option(
            f"--{name.replace('_', '-')}", type=float, default=field.default, show_default=True, help=field.description
        )
        for name, field in BehaviourLimits.model_fields.items()
    )
)


@click.command(epilog=EXIT_STATUS_HELP)
@click.argument("runs", metavar="[RUN_A RUN_B]", nargs=-1, type=click.Path(path_type=Path))
@recording_options
@looking_options
@threshold_options
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON.")
def behave(runs: tuple[Path, ...], as_json: bool, **options: Any) -> int:
    """Do two configurations behave alike? Samples both, or compares two runs.

    RUN_A and RUN_B are recorded runs of the same prompts. Without them, both
    are sampled first: one engine or two, each with its own sampling.

    Compared are length, repetition, blank answers, keywords, format, finish
    reasons, how alike the samples of a prompt are, and the reward. A difference
    fails if it is beyond chance (5 % for all metrics together) and larger than
    its threshold; what could not have been seen is unknown and no pass.

    What is sampled here is kept with the answer in behaviour.json. If it fails,
    the last line says how to go back to the last green protocol.
    """
    recording = {name: options.pop(name) for name in _RECORDING}
    asked = _options(options)
    with progress_bar() as bar:
        if runs:
            found = behave_of(*_two(runs, recording), asked, progress=bar)
        else:
            path, request = _request(recording)
            found = record_and_behave(path, request, asked, resume=recording["resume"], progress=bar)
    if as_json:
        click.echo(found.model_dump_json(indent=2))
    else:
        show_behaviour(found, Console())
    say_way_back(found.status, Path(found.b.run))
    return found.exit_status


def _two(runs: tuple[Path, ...], recording: dict[str, Any]) -> tuple[Path, Path]:
    given = [f"--{name.replace('path', 'run').replace('_', '-')}" for name, value in recording.items() if value]
    if len(runs) != 2:
        raise UsageError(f"{len(runs)} runs are named. Name two, or none and --engine-a.")
    if given:
        raise UsageError(f"{given[0]} is about recording, and {runs[0]} and {runs[1]} are recorded. Leave it out.")
    return runs[0], runs[1]


def _request(recording: dict[str, Any]) -> tuple[Path, BehaveRequest]:
    if recording["engine_a"] is None:
        raise UsageError(
            "name two runs, or an engine to sample with: --engine-a SPEC, and --engine-b SPEC if B's differs."
        )
    if recording["resume"] and recording["path"] is None:
        raise UsageError("--resume needs --run DIR: the runs to go on with.")
    texts_a, texts_b, samples = texts_and_samples(recording["a"], recording["b"], samples=recording["samples"])
    a, b = protocols(texts_a, texts_b, samples=samples)
    suite = recording["suite"] or "quick"
    request = BehaveRequest(
        engine_a=recording["engine_a"],
        a=a,
        engine_b=recording["engine_b"],
        b=b,
        suite=suite,
        prompts=recording["prompts"],
    )
    return recording["path"] or new_run_path(suite), request


def _options(options: dict[str, Any]) -> BehaveOptions:
    thresholds = {name: options.pop(name) for name in BehaviourLimits.model_fields}
    parse, parse_with, reward = options.pop("parse"), options.pop("parse_with"), options.pop("reward")
    if parse is not None and parse_with is not None:
        raise UsageError("--parse and --parse-with are two answers to one question. Give one of them.")
    return BehaveOptions(
        parse=parse if parse_with is None else function_named(parse_with, option="--parse-with"),
        reward=None if reward is None else function_named(reward, option="--reward"),
        limits=_limits(thresholds),
        **options,
    )


def _limits(thresholds: dict[str, float]) -> BehaviourLimits:
    try:
        return BehaviourLimits(**thresholds)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0]).replace("_", "-")
        raise UsageError(f"--{name} {first['input']}: {first['msg']}.") from error
