"""`onepolicy conform`."""

from __future__ import annotations

import click
from rich.console import Console

from onepolicy.errors import UsageError
from onepolicy.records.conform import Conformance
from onepolicy.report.conform import conformance_markdown, show_case, show_conformance
from onepolicy.workflow.conform import conform as run_conform


@click.command(
    epilog="Exit status: 0 nothing is wrong, 1 something is, 2 could not run, 3 nothing was tried, 130 interrupted."
)
@click.argument("subject")
@click.option("--as", "role", metavar="ROLE", help="The role of MODULE:FUNCTION, if its name is none.")
@click.option("--explain", "case", metavar="CASE", help="Show one case at length, as CASE or ROLE/CASE.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Print it as Markdown.")
def conform(subject: str, role: str | None, case: str | None, *, as_json: bool, as_markdown: bool) -> int:
    """Do a trainer's own functions compute what they should?

    SUBJECT is trl, verl, MODULE, MODULE:FUNCTION, or onepolicy for the
    references themselves. MODULE is my_pkg.losses or a file, losses.py.
    Its functions are put through planted batches and compared with the
    references in value, sign, gradient and invariance.

    A module's functions are found by the names of the roles (how each is
    called: docs/conform.md): token_logprobs, processed_logprobs,
    sequence_logprobs, completion_logprobs, model_logprobs, completion_mask,
    masked_mean, whiten, kl, kl_loss, grpo_advantages, dr_grpo_advantages,
    rloo_advantages, gae, policy_loss, dual_clip_loss, token_mean,
    sequence_mean, constant_length, overlong, agrees, is_systematic.
    """
    if as_json + as_markdown + (case is not None) > 1:
        raise UsageError("--json, --markdown and --explain are three forms of one result. Ask for one of them.")
    found = run_conform(subject, role=role)
    _show(found, case, as_json=as_json, as_markdown=as_markdown)
    return found.exit_status


def _show(found: Conformance, case: str | None, *, as_json: bool, as_markdown: bool) -> None:
    if as_json:
        click.echo(found.model_dump_json(indent=2))
    elif as_markdown:
        click.echo(conformance_markdown(found), nl=False)
    elif case is not None:
        show_case(found, case, Console())
    else:
        show_conformance(found, Console())
