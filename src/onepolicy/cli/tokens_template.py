"""`onepolicy tokens template`: what a chat template does to a conversation, and what that means for training."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import click
from rich.console import Console, Group
from rich.text import Text

from onepolicy.cli.app import EXIT_STATUS_HELP
from onepolicy.errors import TemplateError, UsageError
from onepolicy.report.console import checks_table, headline
from onepolicy.tokens.open import open_tokenizer
from onepolicy.tokens.render import PROBE_DATE, ChatTemplate
from onepolicy.tokens.template.probes import Book
from onepolicy.tokens.template.report import book_of, compare, examine
from onepolicy.workflow.tokens_servers import names_server, template_against

_SUFFIXES = (".jinja", ".jinja2", ".j2")
_LARGEST = 1 << 22
"""bytes of a template file; real ones have a few thousand"""


@click.command(epilog=EXIT_STATUS_HELP)
@click.argument("target", metavar="T")
@click.argument("other", metavar="[T2]", required=False)
@click.option("--tokenizer", metavar="TARGET", help="The tokenizer of a template that is given as a .jinja file.")
@click.option(
    "--date",
    type=click.DateTime(["%Y-%m-%d"]),
    default=PROBE_DATE.strftime("%Y-%m-%d"),
    show_default=True,
    help="What a template is told that asks for today's date.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def template(target: str, other: str | None, tokenizer: str | None, date: datetime, as_json: bool) -> int:
    """Say what a chat template does to a conversation, or where two differ.

    T is a folder, tokenizer.json, GGUF file, hub id in the local cache or
    packaged model; or a .jinja file, with --tokenizer. Some conversations are
    rendered, and each property says what it means for training. With T2 the
    same conversations are rendered by both; T2 may be a live server, as
    vllm:http://host:port or llamacpp:http://host:port, whose ids of plain
    conversations are compared with T's.

    A property that changes what is trained decides the exit status; the others
    are notes. Training on sampled ids, never rendered again, is safe from them
    all.
    """
    book = _book(target, tokenizer, date)
    if other is not None and names_server(other):
        report = template_against(book, other)
    else:
        report = examine(book) if other is None else compare(book, _book(other, tokenizer, date))
    if as_json:
        click.echo(report.model_dump_json(indent=2))
    else:
        Console().print(Group(headline(report.sentence, report.status), Text(), checks_table(report.verdicts)))
    return report.exit_status


def _book(target: str, tokenizer: str | None, date: datetime) -> Book:
    if names_server(target):
        raise UsageError(f"{target}: a server is compared with a template that lies here. Give that first: T {target}.")
    path = Path(target).expanduser()
    if path.suffix not in _SUFFIXES:
        return book_of(open_tokenizer(target), now=date)
    if tokenizer is None:
        raise UsageError(f"{target} is a template without a tokenizer. Add --tokenizer TARGET.")
    stored = open_tokenizer(tokenizer)
    return book_of(stored, template=ChatTemplate(source=_source(path), special=stored.special, origin=target), now=date)


def _source(path: Path) -> str:
    if not path.is_file():
        raise TemplateError(f"{path} is no file. Give the .jinja file of a template.")
    if path.stat().st_size > _LARGEST:
        raise TemplateError(f"{path} has {path.stat().st_size} bytes; no chat template is that large.")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise TemplateError(f"{path} is not UTF-8 (byte {error.start}). Save it as UTF-8.") from error
