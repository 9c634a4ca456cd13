"""`record`, `score`, `judge` and `report`: the stages of `check`, each usable in an environment of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from onepolicy.cli.app import EXIT_STATUS_HELP, STAGE_EXIT_STATUS_HELP
from onepolicy.cli.options import (
    extend_option,
    json_option,
    limit_options,
    limits_from,
    protocol_from,
    protocol_option,
    recording_options,
    resume_option,
    run_argument,
    sampling_options,
    statistics_option,
    suite_option,
)
from onepolicy.cli.show import finish, progress_bar
from onepolicy.engines.spec import parse_spec
from onepolicy.records.files import write_text_atomically
from onepolicy.report.junit import junit
from onepolicy.workflow.judge import JudgeRequest, stored_html, stored_judgement
from onepolicy.workflow.judge import judge as run_judge
from onepolicy.workflow.plan import Shard
from onepolicy.workflow.record import RecordRequest
from onepolicy.workflow.record import record as run_record
from onepolicy.workflow.score import ScoreRequest
from onepolicy.workflow.score import score as run_score

output_file = click.Path(path_type=Path, dir_okay=False)
shard_option = click.option("--shard", default="1/1", show_default=True, help="2/4 does the second of four parts.")


@click.command(epilog=STAGE_EXIT_STATUS_HELP)
@click.option("--engine", required=True, metavar="SPEC", help="The engine that samples.")
@suite_option
@click.option("--run", "path", type=click.Path(path_type=Path), required=True, help="Where the run is kept.")
@resume_option
@extend_option
@protocol_option
@sampling_options
@recording_options
@shard_option
def record(engine: str, path: Path, resume: bool, shard: str, **options: Any) -> int:
    """Sample a suite into a run directory."""
    options["keep_text"] = not options.pop("no_text")
    request = RecordRequest(
        engine=parse_spec(engine), protocol=protocol_from(options), shard=Shard.parse(shard), **options
    )
    with progress_bar() as bar:
        run = run_record(path, request, resume=resume, progress=bar)
    click.echo(f"{run.path}: {len(run.rollout_ids())} of {run.manifest.planned_rollouts} rollouts", err=True)
    return 0


@click.command(epilog=STAGE_EXIT_STATUS_HELP)
@run_argument
@click.option("--engine", required=True, metavar="SPEC", help="The engine that scores.")
@click.option("--name", default="trainer", show_default=True, help="Name of the reading inside the run.")
@click.option("--resume", is_flag=True, help="Go on with a reading that was begun, or whose run was extended.")
@statistics_option
@shard_option
def score(run: Path, engine: str, name: str, statistics: bool, shard: str, resume: bool) -> int:
    """Add an engine's logprobs to a run. What the reading already has is never computed again."""
    request = ScoreRequest(
        engine=parse_spec(engine), name=name, statistics=statistics, shard=Shard.parse(shard), resume=resume
    )
    with progress_bar() as bar:
        scored = run_score(run, request, progress=bar)
    if scored is not None:
        click.echo(f"{run}: {len(scored.reading_rollout_ids(name))} rollouts scored as {name!r}", err=True)
    return 0


@click.command(epilog=EXIT_STATUS_HELP)
@run_argument
@click.option("--rollout", default="rollout", show_default=True, help="Name of the rollout side's reading.")
@click.option("--trainer", default="trainer", show_default=True, help="Name of the trainer side's reading.")
@click.option("--name", default="default", show_default=True, help="Name of the judgement inside the run.")
@limit_options
@json_option
def judge(run: Path, rollout: str, trainer: str, name: str, as_json: bool, **options: Any) -> int:
    """Compare two readings of a run and decide. Needs no engine."""
    request = JudgeRequest(rollout=rollout, trainer=trainer, name=name, limits=limits_from(options))
    with progress_bar() as bar:
        judgement = run_judge(run, request, progress=bar)
    return finish(judgement, as_json=as_json, path=run, name=name)


@click.command(epilog=EXIT_STATUS_HELP)
@run_argument
@click.option("--name", default="default", show_default=True, help="Name of the judgement inside the run.")
@click.option("--html", "html_file", type=output_file, help="Write the report there, one page that opens offline.")
@click.option("--junit", "junit_file", type=output_file, help="Write the checks there as JUnit XML.")
@json_option
def report(run: Path, name: str, html_file: Path | None, junit_file: Path | None, as_json: bool) -> int:
    """Show a judgement that a run keeps, and end with its exit status."""
    if html_file is not None:
        write_text_atomically(html_file, stored_html(run, name))
    judgement = stored_judgement(run, name)
    if junit_file is not None:
        write_text_atomically(junit_file, junit(judgement))
    return finish(judgement, as_json=as_json, path=run, name=name)
