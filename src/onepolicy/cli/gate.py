"""`onepolicy gate`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click

from onepolicy.cli.app import EXIT_STATUS_HELP
from onepolicy.cli.duration import Duration
from onepolicy.errors import EngineError, OnePolicyError
from onepolicy.records.files import write_text_atomically
from onepolicy.records.past import GateAnswer
from onepolicy.visible import visible
from onepolicy.workflow.gate_answer import (
    could_not_run,
    read_answer,
    refuse_one_file,
    undecided,
    write_answer,
)
from onepolicy.workflow.gate_process import HIGHEST_STATUS, become, decide_apart, refuse_absent


@click.command(epilog=f"{EXIT_STATUS_HELP} If COMMAND is run: its own.")
@click.argument("config", type=click.Path(path_type=Path))
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--verdict",
    type=click.Path(path_type=Path, dir_okay=False),
    default="onepolicy-verdict.json",
    show_default=True,
    help="Where the answer is written, as JSON, before COMMAND starts.",
)
@click.option(
    "--runs",
    type=click.Path(path_type=Path, file_okay=False),
    default="runs",
    show_default=True,
    help="Folder in which the run is made, and compared with the last green one.",
)
@click.option(
    "--blocked-status",
    type=click.IntRange(1, 255),
    metavar="INTEGER",
    help="End with this if COMMAND may not run, instead of 1, 2 or 3.",
)
@click.option(
    "--if-changed",
    type=Duration(),
    metavar="AGE",
    help="Skip the check if nothing changed since a green run of this age at most, such as 7d.",
)
@click.option(
    "--prometheus",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the numbers for a textfile collector.",
)
def gate(config: Path, command: tuple[str, ...], blocked_status: int | None, **options: Any) -> int:
    """Check what CONFIG says, and run COMMAND only if it passes.

    \b
      onepolicy gate onepolicy.yaml -- torchrun train.py --lr 1e-6

    COMMAND takes the place of this process: signals reach it, and its exit
    status is the exit status. Whatever is no pass blocks it: fail, unknown, an
    engine that does not start, a verdict file that cannot be written. Without
    COMMAND nothing is run, and the exit status is the answer.
    """
    try:
        refuse_one_file(config, {"--verdict": options["verdict"], "--prometheus": options["prometheus"]})
        status = _guarded(config, command, options) if command else _decided(config, **options)
    except OnePolicyError as error:
        if blocked_status is None:
            raise
        click.echo(f"onepolicy: {visible(str(error), keep=chr(10))}", err=True)
        return blocked_status
    return blocked_status if blocked_status is not None and status in (1, 2, 3) else status


def _decided(config: Path, prometheus: Path | None, **options: Any) -> int:
    from rich.console import Console  # noqa: PLC0415 - not in the process that becomes the command

    from onepolicy.cli.show import progress_bar  # noqa: PLC0415
    from onepolicy.report.history_console import show_answer  # noqa: PLC0415
    from onepolicy.report.prometheus import prometheus_text  # noqa: PLC0415
    from onepolicy.workflow.gate import GateRequest  # noqa: PLC0415
    from onepolicy.workflow.gate import gate as run_gate  # noqa: PLC0415

    def write(answer: GateAnswer) -> None:
        if prometheus is not None:
            write_text_atomically(prometheus, prometheus_text(answer.numbers, status=answer.status, time=answer.time))

    with progress_bar() as bar:
        answer = run_gate(GateRequest(config=config, seen=write, **options), progress=bar)
    show_answer(answer, Console())
    return answer.exit_status


def _guarded(config: Path, command: tuple[str, ...], options: dict[str, Any]) -> int:
    """The status with which this ends, if it does not become the command."""
    verdict: Path = options["verdict"]
    write_answer(verdict, undecided(config, datetime.now(UTC)))
    refuse_absent(command)
    try:
        ended = decide_apart(["gate", *_typed(options), "--", str(config)])
        _refuse_another_answer(verdict, ended)
    except OnePolicyError as error:  # the file may say that it passed: it was there before the crash
        write_answer(verdict, could_not_run(config, datetime.now(UTC), str(error)))
        raise
    if ended > HIGHEST_STATUS:  # a signal, which may have come after the answer
        write_answer(verdict, undecided(config, datetime.now(UTC)))
    return ended or become(command)


def _refuse_another_answer(verdict: Path, ended: int) -> None:
    """Raise EngineError if the check ended with a status that is not the one of its answer."""
    if ended > HIGHEST_STATUS:
        return
    said = read_answer(verdict).exit_status
    if said != ended:
        raise EngineError(
            f"the check ended with status {ended}, and {verdict} says {said}: it crashed, or another gate writes this "
            "file (give each a --verdict of its own). Nothing was decided."
        )


def _typed(options: dict[str, Any]) -> list[str]:
    """The options of the process that decides, as they are typed."""
    age = options["if_changed"]
    shown = {**options, "if_changed": f"{age.total_seconds():f}s" if isinstance(age, timedelta) else None}
    given = {name.replace("_", "-"): value for name, value in shown.items() if value is not None}
    return [part for name, value in given.items() for part in (f"--{name}", str(value))]
