"""`onepolicy check`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from onepolicy.cli.app import EXIT_STATUS_HELP
from onepolicy.cli.options import (
    json_option,
    limit_options,
    limits_from,
    protocol_from,
    recording_options,
    resume_option,
    sampling_options,
    suite_option,
)
from onepolicy.cli.show import finish, progress_bar
from onepolicy.engines.spec import parse_spec
from onepolicy.workflow.check import CheckRequest
from onepolicy.workflow.check import check as run_check


@click.command(epilog=EXIT_STATUS_HELP)
@click.option("--rollout", required=True, metavar="SPEC", help="The engine that samples, e.g. llamacpp:model.gguf")
@click.option(
    "--trainer",
    required=True,
    metavar="SPEC",
    help="The engine that scores, e.g. transformers:./model?dtype=bfloat16",
)
@click.option(
    "--also",
    multiple=True,
    metavar="SPEC",
    help="Score with this too, e.g. the trainer in the rollout's precision; may be given more than once.",
)
@suite_option
@click.option(
    "--run",
    "path",
    type=click.Path(path_type=Path),
    help="Where the run is kept; a new folder under runs/ if not given.",
)
@resume_option
@sampling_options
@recording_options
@limit_options
@json_option
def check(
    rollout: str,
    trainer: str,
    also: tuple[str, ...],
    path: Path | None,
    resume: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Sample with one engine, score the same tokens with the other, decide.

    SPEC is engine:target?option=value, for example

    \b
      'transformers:./my-model?dtype=bfloat16&batch_size=8'
      llamacpp:smollm2          (a packaged model)
      callable:my_pkg.scoring:score
    """
    options["keep_text"] = not options.pop("no_text")
    request = CheckRequest(
        rollout=parse_spec(rollout),
        trainer=parse_spec(trainer),
        also=tuple(parse_spec(spec) for spec in also),
        protocol=protocol_from(options),
        limits=limits_from(options),
        **options,
    )
    with progress_bar() as bar:
        judgement = run_check(request, path=path, resume=resume, progress=bar)
    return finish(judgement, as_json=as_json)
