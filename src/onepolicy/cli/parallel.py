"""`onepolicy parallel`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.console import Console

from onepolicy.cli.app import EXIT_STATUS_HELP
from onepolicy.cli.show import progress_bar
from onepolicy.engines.parallel import parse_layouts
from onepolicy.engines.spec import parse_spec
from onepolicy.report.parallel import show_parallel
from onepolicy.workflow.parallel import ParallelRequest
from onepolicy.workflow.parallel import parallel as run_parallel
from onepolicy.workflow.parallel_sequences import SUITE, SequenceSource
from onepolicy.workflow.parallel_verdicts import BITWISE, Rule

positive = click.IntRange(min=1)


@click.command(epilog=EXIT_STATUS_HELP)
@click.argument("spec")
@click.option(
    "--degrees",
    multiple=True,
    required=True,
    metavar="KIND=N,N",
    help="Layouts: fsdp=2, tp=2,4; of a callable any kind. May be repeated.",
)
@click.option("--suite", default=SUITE, show_default=True, metavar="NAME|FILE", help="Fixed sequences to compare on.")
@click.option("--run", type=click.Path(path_type=Path, file_okay=False), help="A recorded run, for its rollouts' ids.")
@click.option(
    "--ids",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="A file with a JSON list of ids in each line.",
)
@click.option("--count", type=positive, default=16, show_default=True, help="Sequences at most.")
@click.option("--longest", type=positive, default=256, show_default=True, help="Tokens of each sequence at most.")
@click.option(
    "--bitwise",
    multiple=True,
    default=sorted(BITWISE),
    show_default=True,
    metavar="KIND",
    help="Kinds that must be bit-identical to one process; may be repeated.",
)
@click.option(
    "--max-mean-abs-d",
    type=click.FloatRange(min=0.0),
    help="What other kinds are held against, in nats; without it they inform.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0.0, min_open=True),
    default=600.0,
    show_default=True,
    help="Seconds that ranks may take to load, and for each sequence.",
)
@click.option(
    "--logits",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where one process's logits are kept; a temporary folder if not given.",
)
@click.option("--json", "as_json", is_flag=True, help="Print what was found as JSON.")
def parallel(spec: str, degrees: tuple[str, ...], as_json: bool, **options: Any) -> int:
    """Compare a model's full logits over several ranks with one process.

    SPEC is transformers:MODEL or callable:MODULE:FUNCTION, a function that
    returns the logits of a list of ids on its rank. Ranks are processes on this
    machine, with the variables that torchrun sets (gloo on a CPU, nccl on GPUs).
    """
    request = _request(spec, degrees, options)
    with progress_bar() as bar:
        found = run_parallel(request, progress=bar)
    if as_json:
        click.echo(found.model_dump_json(indent=2))
    else:
        show_parallel(found, Console())
    return found.exit_status


def _request(spec: str, degrees: tuple[str, ...], options: dict[str, Any]) -> ParallelRequest:
    rule = Rule(bitwise=frozenset(options.pop("bitwise")), max_mean_abs_d=options.pop("max_mean_abs_d"))
    timeout, logits = options.pop("timeout"), options.pop("logits")
    return ParallelRequest(
        spec=parse_spec(spec),
        layouts=parse_layouts(degrees),
        source=SequenceSource(**options),
        rule=rule,
        timeout=timeout,
        logits=logits,
    )
