"""`onepolicy diagnose`."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console

from onepolicy.cli.options import run_argument
from onepolicy.cli.show import progress_bar
from onepolicy.engines.spec import EngineSpec, parse_spec
from onepolicy.errors import UsageError
from onepolicy.records.finding import Diagnosis, Outcome
from onepolicy.records.floor import read_floor
from onepolicy.report.diagnosis import show_diagnosis
from onepolicy.workflow.diagnose import DiagnoseRequest
from onepolicy.workflow.diagnose import diagnose as diagnose_run
from onepolicy.workflow.diagnose_experiments import SECONDS
from onepolicy.workflow.record import ROLLOUT
from onepolicy.workflow.score import TRAINER
from onepolicy.workflow.why import keep_diagnosis

NOT_KNOWN = 3
"""exit status: no cause was found, or one of several, or a part"""
weights_option = click.option(
    "--weights",
    multiple=True,
    metavar="NAME=SPEC",
    help="Other weights of the trainer, such as 'step 0=transformers:./step0'; repeatable, older ones first.",
)


@click.command(
    epilog="Exit status: 0 the cause was found, or nothing is to be explained; 2 could not run; 3 no cause, one of "
    "several, or only a part; 130 interrupted."
)
@run_argument
@click.option("--rollout", default=ROLLOUT, show_default=True, help="The reading of the rollout side.")
@click.option("--trainer", default=TRAINER, show_default=True, help="The reading of the trainer side.")
@click.option(
    "--floor",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="The noise, as `onepolicy calibrate` measured it; without it, what the two precisions do to a small model.",
)
@weights_option
@click.option(
    "--seconds",
    type=click.FloatRange(min=0),
    default=SECONDS,
    show_default=True,
    help="After which no other experiment is begun.",
)
@click.option("--no-experiments", is_flag=True, help="Open no engine; say only what the recorded data say.")
@click.option("--json", "as_json", is_flag=True, help="Print the diagnosis as JSON.")
def diagnose(
    run: Path, floor: Path | None, weights: tuple[str, ...], seconds: float, as_json: bool, **options: str | bool
) -> int:
    """Why do the two sides of a run differ?

    Each known cause is applied as a correction, fitted on some prompts and
    judged on the others: it is the cause if it removes the difference down to
    the noise, and no other does as well. What the data cannot tell is read
    again on a few prompts, by the engines of the run.

    The answer is kept beside the judgements on the same two readings, and
    shown at the top of their reports.
    """
    request = DiagnoseRequest(
        rollout=str(options["rollout"]),
        trainer=str(options["trainer"]),
        floor=None if floor is None else read_floor(floor),
        weights=weights_from(weights),
        experiments=not options["no_experiments"],
        seconds=seconds,
    )
    with progress_bar() as bar:
        found = diagnose_run(run, request, progress=bar)
        keep_diagnosis(run, found, progress=bar)
    if as_json:
        click.echo(found.model_dump_json(indent=2))
    else:
        show_diagnosis(found, Console())
    return exit_status(found)


def exit_status(found: Diagnosis) -> int:
    """0 where the answer is known: the cause, or that there is nothing to explain."""
    outcomes = {one.outcome for one in found.causes}
    if outcomes:
        return 0 if Outcome.CAUSE in outcomes else NOT_KNOWN
    return NOT_KNOWN if found.differs else 0


def weights_from(given: tuple[str, ...]) -> dict[str, EngineSpec]:
    """Name -> spec, in the order given."""
    found: dict[str, EngineSpec] = {}
    for text in given:
        name, equals, spec = text.partition("=")
        name = name.strip()
        if not equals or not name or ":" in name:
            raise UsageError(f"--weights {text!r} names no weights. Write NAME=SPEC: 'step 0=transformers:./step0'.")
        if name in found:
            raise UsageError(f"--weights names {name!r} twice. Give each a name of its own: NAME=SPEC.")
        found[name] = parse_spec(spec)
    return found
