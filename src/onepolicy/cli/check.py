"""`onepolicy check`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from onepolicy.cli.app import EXIT_STATUS_HELP
from onepolicy.cli.diagnose import weights_from, weights_option
from onepolicy.cli.green import say_way_back
from onepolicy.cli.options import (
    extend_option,
    json_option,
    limit_changes,
    limit_options,
    protocol_option,
    recording_options,
    resume_option,
    sampling_options,
    suite_option,
    typed,
)
from onepolicy.cli.show import finish, progress_bar
from onepolicy.cli.show_legs import finish_with_legs
from onepolicy.records.protocol import COMMON_FIELDS
from onepolicy.workflow.check import CheckRequest, Why
from onepolicy.workflow.check import check as run_check
from onepolicy.workflow.config import Config, check_request, load_config, overlaid
from onepolicy.workflow.legs_pair import PairRequest
from onepolicy.workflow.protocol import whole_protocol


@click.command(epilog=EXIT_STATUS_HELP)
@click.argument("config", required=False, type=click.Path(path_type=Path))
@click.option("--rollout", metavar="SPEC", help="The engine that samples, e.g. llamacpp:model.gguf")
@click.option("--trainer", metavar="SPEC", help="The engine that scores, e.g. transformers:./model?dtype=bfloat16")
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
@extend_option
@protocol_option
@click.option(
    "--legs", "climb", is_flag=True, help="Then hold each side against itself, and name the first leg that breaks."
)
@click.option("--no-why", is_flag=True, help="Do not look for the cause if the check fails.")
@weights_option
@sampling_options
@recording_options
@limit_options
@json_option
def check(config: Path | None, path: Path | None, resume: bool, climb: bool, as_json: bool, **options: Any) -> int:
    """Sample with one engine, score the same tokens with the other, decide.

    CONFIG is a file that `onepolicy init` writes. What is given as an option
    goes over it; without a file, --rollout and --trainer are needed.

    SPEC is engine:target?option=value, for example

    \b
      'transformers:./my-model?dtype=bfloat16&batch_size=8'
      llamacpp:smollm2          (a packaged model)
      callable:my_pkg.scoring:score

    If it fails, the cause is looked for, as `onepolicy diagnose` does: some
    minutes at most, in which the engines read a few rollouts again. That
    changes neither the verdict nor the exit status; --no-why leaves it out.

    With --legs it passes only if the legs of both sides hold too.
    """
    limits, extend, why = limit_changes(options), options.pop("extend"), _why(options)
    asked = overlaid(Config() if config is None else load_config(config), _given(options))
    request = replace(check_request(asked, limits=limits), extend=extend)
    with progress_bar() as bar:
        judgement = run_check(request, path=path, resume=resume, why=why, progress=bar)
    if climb:
        status = finish_with_legs(judgement, _pair(asked, request), as_json=as_json)
    else:
        status = finish(judgement, as_json=as_json)
    say_way_back(judgement.status, Path(judgement.run))
    return status


def _why(options: dict[str, Any]) -> Why | None:
    """What to find the cause with, taken out of the options; None if nobody wants to know."""
    weights = weights_from(options.pop("weights"))
    return None if options.pop("no_why") else Why(weights=weights)


def _pair(asked: Config, request: CheckRequest) -> PairRequest:
    name = asked.limits if isinstance(asked.limits, str) else "of the file"
    return PairRequest(rollout=request.rollout, trainer=request.trainer, limits=request.limits, limits_name=name)


def _given(options: dict[str, Any]) -> dict[str, Any]:
    """The options that somebody typed, under the names that a config has; `sampling` is what goes over the file's."""
    given = typed(options)
    if given.pop("no_text", False):
        given["keep_text"] = False
    if "limits_source" in given:
        given["limits"] = given.pop("limits_source")
    sampling = {name: given.pop(name) for name in COMMON_FIELDS if name in given}
    if "protocol_source" in given:
        sampling = whole_protocol(given.pop("protocol_source")).model_dump() | sampling
    return given | ({"sampling": sampling} if sampling else {})
