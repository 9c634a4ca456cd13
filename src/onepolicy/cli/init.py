"""`onepolicy init`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import click

from onepolicy.cli.app import STAGE_EXIT_STATUS_HELP
from onepolicy.cli.options import suite_option
from onepolicy.engines.spec import EngineSpec, parse_spec
from onepolicy.errors import UsageError
from onepolicy.integrations import ENGINES, check_spec
from onepolicy.judgement.load import PRESETS
from onepolicy.visible import visible
from onepolicy.workflow.config import Config
from onepolicy.workflow.init import (
    NOT_PROBED,
    Suggestion,
    check_output,
    check_sides,
    config_text,
    differences,
    probe_rollout,
    probe_trainer,
    suggested,
    write_config,
)

Notes = dict[str, list[str]]


@click.command(epilog=STAGE_EXIT_STATUS_HELP)
@click.option("--rollout", metavar="SPEC", help="The engine that samples; asked for if not given.")
@click.option("--trainer", metavar="SPEC", help="The engine that scores; asked for if not given.")
@suite_option
@click.option(
    "--limits",
    type=click.Choice(PRESETS),
    help="Preset of limits; if not given, one is suggested by the precision of both sides.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    default=Path("onepolicy.yaml"),
    show_default=True,
    help="The file to write.",
)
@click.option("--force", is_flag=True, help="Replace the file if it is there.")
@click.option("--no-probe", is_flag=True, help="Open no engine, where it runs elsewhere or takes long to load.")
def init(  # noqa: PLR0913 - one for each option
    *,
    rollout: str | None,
    trainer: str | None,
    suite: str,
    limits: str | None,
    output: Path,
    force: bool,
    no_probe: bool,
) -> int:
    """Write a commented configuration file that `onepolicy check` runs.

    Opens both engines, says what they are, and suggests a preset of limits. What
    is not given is asked for, if a person is there.
    """
    check_output(output, force=force)
    config = Config(
        rollout=_side("--rollout", rollout, "Engine that samples (SPEC)"),
        trainer=_side("--trainer", trainer, "Engine that scores (SPEC)"),
        suite=suite,
    )
    check_sides(config)
    notes, suggestion = ({}, NOT_PROBED) if no_probe else _probed(config)
    preset = limits or _preset(suggestion)
    why = suggestion.why if preset == suggestion.preset else "as asked for"
    notes["limits"] = [f"Preset {preset}: {why}."]
    config = config.model_copy(update={"limits": preset})
    write_config(output, config_text(config, output, notes), force=force)
    click.echo(f"wrote {visible(str(output))}; run it with: onepolicy check {visible(shlex.quote(str(output)))}")
    return 0


def _side(flag: str, given: str | None, question: str) -> EngineSpec:
    if given is not None:
        return parse_spec(given)
    if not _somebody_is_there():
        raise UsageError(
            f"{flag} is not given, and stdin is no terminal to ask at. Give {flag} SPEC, for example "
            f"{flag} transformers:./my-model."
        )
    engines = ", ".join(ENGINES)
    answer: EngineSpec = click.prompt(f"{question}; engines: {engines}", value_proc=_answer, err=True)
    return answer


def _answer(text: str) -> EngineSpec:
    try:
        spec = parse_spec(text.strip())
        check_spec(spec)
    except UsageError as error:
        raise click.BadParameter(visible(str(error))) from error
    return spec


def _preset(suggestion: Suggestion) -> str:
    """The suggested one, unless a person prefers another."""
    click.echo(f"limits: {suggestion.preset}, as {suggestion.why}", err=True)
    if not _somebody_is_there():
        return suggestion.preset
    answer: str = click.prompt(
        "Preset of limits", type=click.Choice(PRESETS), default=suggestion.preset, show_choices=True, err=True
    )
    return answer


def _somebody_is_there() -> bool:
    """Whether stdin is a terminal; a process that was started without one has None."""
    return sys.stdin is not None and not sys.stdin.closed and sys.stdin.isatty()


def _probed(config: Config) -> tuple[Notes, Suggestion]:
    """What both engines are, as comments of the file; warns of what differs."""
    assert config.rollout is not None
    assert config.trainer is not None
    rollout = probe_rollout(config.rollout, config.suite)
    click.echo(f"rollout: {rollout}")
    trainer = probe_trainer(config.trainer)
    click.echo(f"trainer: {trainer}")
    warnings = differences(rollout, trainer)
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)
    notes: Notes = {
        "": [f"Warning: {warning}" for warning in warnings],
        "rollout": [f"Found: {rollout}."],
        "trainer": [f"Found: {trainer}."],
    }
    return notes, suggested(rollout.info, trainer.info)
