"""`onepolicy selftest`."""

from __future__ import annotations

import click
from rich.console import Console

from onepolicy.cli.show import progress_bar
from onepolicy.errors import UsageError
from onepolicy.records.selftest import SelfTest
from onepolicy.report.selftest import selftest_page, show_selftest
from onepolicy.workflow.selftest import SelfTestRequest
from onepolicy.workflow.selftest import selftest as run_selftest
from onepolicy.workflow.selftest_bench import TINY
from onepolicy.workflow.selftest_faults import not_planted


@click.command(
    epilog="Exit status: 0 all is as it must be; 1 a fault above the noise was not detected, fewer than 95 % have the "
    "right cause, a wrong one is named below the noise, or an honest pair alarmed; 2 could not run; 130 interrupted."
)
@click.option(
    "--model",
    default=TINY,
    show_default=True,
    metavar="MODEL",
    help="tiny: random models of two layers, made in a temporary folder; or smollm2, or a folder.",
)
@click.option("--only", multiple=True, metavar="NAME", help="A fault, or controls; repeatable. All without it.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Print it as a page of the docs.")
def selftest(model: str, only: tuple[str, ...], *, as_json: bool, as_markdown: bool) -> int:
    """Does the diagnosis find what is wrong?

    Plants known faults in pairs of real engines, at three sizes each, and
    diagnoses them; and pairs in which nothing is wrong. A real model takes the
    faults that can be made of it, with fewer prompts.
    """
    if as_json and as_markdown:
        raise UsageError("--json and --markdown are two forms of one result. Ask for one of them.")
    with progress_bar() as bar:
        found = run_selftest(SelfTestRequest(model=model, only=only), progress=bar)
    _show(found, as_json=as_json, as_markdown=as_markdown)
    return 0 if found.passed else 1


def _show(found: SelfTest, *, as_json: bool, as_markdown: bool) -> None:
    if as_json:
        click.echo(found.model_dump_json(indent=2))
    elif as_markdown:
        click.echo(selftest_page(found, not_planted=not_planted(found)), nl=False)
    else:
        show_selftest(found, Console())
