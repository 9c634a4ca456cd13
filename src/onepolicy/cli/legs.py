"""`onepolicy legs`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from onepolicy.cli.app import EXIT_STATUS_HELP
from onepolicy.cli.options import limit_options, limits_from, resume_option
from onepolicy.cli.show import progress_bar
from onepolicy.engines.spec import EngineSpec, parse_spec
from onepolicy.errors import UsageError
from onepolicy.records.protocol import SamplingProtocol
from onepolicy.report.legs import markdown, show
from onepolicy.workflow.legs import BUDGET, SUITE, LegsRequest
from onepolicy.workflow.legs import legs as run_legs

_NAMED = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)=(.+)", re.DOTALL)
"""NAME=SPEC; a spec alone has a colon before its first ="""


@click.command(epilog=EXIT_STATUS_HELP)
@click.argument("engine", metavar="SPEC")
@click.option(
    "--against",
    multiple=True,
    metavar="[NAME=]SPEC",
    help="Another engine on the same tokens, as the leg NAME: the trainer, or a server started with other flags.",
)
@click.option("--leg", "only", multiple=True, metavar="NAME", help="Climb this leg, and let it decide; repeatable.")
@click.option("--without", multiple=True, metavar="NAME", help="Leave this leg out; repeatable.")
@click.option("--bitwise", multiple=True, metavar="NAME", help="Hold this leg against the preset bitwise; repeatable.")
@click.option(
    "--suite",
    metavar="NAME|FILE",
    help=f"Fixed sequences to read, or prompts that the engine samples first; {SUITE} if not given.",
)
@click.option(
    "--budget",
    type=click.IntRange(min=1),
    metavar="INTEGER",
    help=f"Completion tokens at most; {BUDGET:,} of {SUITE} if neither is given.",
)
@click.option(
    "--max-new-tokens",
    type=click.IntRange(min=1),
    default=64,
    show_default=True,
    help="Longest completion, of a suite of prompts.",
)
@click.option(
    "--run",
    "path",
    type=click.Path(path_type=Path, file_okay=False),
    help="A recorded run, whose rollouts are read and whose readings are used again; or where the suite is recorded.",
)
@click.option("--name", default="legs", show_default=True, help="Readings in the run are called NAME-plain and so on.")
@resume_option
@limit_options
@click.option("--json", "as_json", is_flag=True, help="Print the ladder as JSON.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Print the ladder as a table for a page.")
def legs(engine: str, path: Path | None, resume: bool, as_json: bool, as_markdown: bool, **options: Any) -> int:
    """Hold an engine against itself, leg by leg.

    The same tokens are read again under every condition that must not matter:
    other neighbours, padding, decode, a warm cache, packed, train mode ... The
    first that does matter is named.
    """
    request = _request(engine, options)
    with progress_bar() as bar:
        ladder = run_legs(request, path=path, resume=resume, progress=bar)
    if as_json:
        click.echo(ladder.model_dump_json(indent=2))
    elif as_markdown:
        click.echo(markdown(ladder))
    else:
        show(ladder, Console())
    return ladder.status.exit_status


def _request(engine: str, options: dict[str, Any]) -> LegsRequest:
    source = options["limits_source"]
    limits = limits_from(options)
    return LegsRequest(
        engine=parse_spec(engine),
        against=_named(options.pop("against")),
        limits=limits,
        limits_name=str(source),
        protocol=SamplingProtocol(max_new_tokens=options.pop("max_new_tokens")),
        **options,
    )


def _named(given: tuple[str, ...]) -> dict[str, EngineSpec]:
    """Leg -> spec; one without a name is called `against`, or `against-2` and so on."""
    found: dict[str, EngineSpec] = {}
    for number, text in enumerate(given, start=1):
        match = _NAMED.fullmatch(text)
        name, spec = (match[1], match[2]) if match else ("against" if number == 1 else f"against-{number}", text)
        if name in found:
            raise UsageError(f"--against names the leg {name!r} twice. Give each a name of its own: NAME=SPEC.")
        found[name] = parse_spec(spec)
    return found
