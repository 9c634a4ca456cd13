"""Why two sides differ: on a terminal, 80 columns wide or more, and as the first section of a page."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from onepolicy.records.finding import NO_EXCESS, Diagnosis, Finding, Outcome
from onepolicy.report.console import number
from onepolicy.report.diagnosis_chart import corrected_chart
from onepolicy.visible import visible

HEAD = ("cause", "outcome", "gain", "explained", "residual", "parameter")
ABOUT_HEAD = (
    "gain: log-likelihood per token, in nats, on prompts that were not used for fitting; residual: |d| that is left, "
    "in multiples of the noise"
)
STYLES = {Outcome.CAUSE: "red", Outcome.PARTLY: "yellow", Outcome.ONE_OF: "yellow"}
_ANSWERS = re.compile(r"(Cause|Nothing to explain|No cause found|Partly explained)\b")


def show_diagnosis(found: Diagnosis, console: Console) -> None:
    """Print the answer, what explains the difference and how it was tried, what is ruled out, what was not tested."""
    parts: list[RenderableType] = [_answer(found.sentence)]
    if found.causes:
        parts += [Text(), _numbers(found), Text(ABOUT_HEAD, style="dim"), *_details(found)]
    if ruled_out(found):
        parts += [Text(), Text("ruled out", style="bold"), Text(", ".join(ruled_out(found)))]
    if untested(found):
        parts += [Text(), Text("not tested", style="bold"), _untested_table(found)]
    parts += [Text(), *(Text(line, style="dim") for line in about(found))]
    console.print(Group(*parts))


def why_section(found: Diagnosis) -> Markup:
    """The same as HTML without a page around it, with |d| before and after each correction."""
    return Markup(  # noqa: S704 - made by a template that escapes
        _template().render(
            found=found,
            head=HEAD,
            about_head=ABOUT_HEAD,
            rows=cause_rows(found),
            details=[(name_of(one), lines) for one in found.causes if (lines := list(details_of(found, one)))],
            chart=corrected_chart(found),
            ruled_out=ruled_out(found),
            untested=untested(found),
            about=about(found),
        )
    )


def cause_rows(found: Diagnosis) -> list[tuple[str, ...]]:
    """One for each cause that explains something; of one that the data prove there are no numbers."""
    return [
        (
            visible(one.cause),
            one.outcome.value,
            _with_error(one.gain, one.gain_error),
            "-" if one.explained is None else f"{one.explained:.1%}",
            "-" if one.residual is None else f"{one.residual:.2g}x",
            _with_error(one.value, one.value_error),
        )
        for one in found.causes
    ]


def name_of(one: Finding) -> str:
    """The cause with its parameter, where it has one."""
    return visible(one.label or one.cause)


def details_of(found: Diagnosis, one: Finding) -> Iterator[tuple[str, str]]:
    """(what, text): how a cause was tried, what shows, what to change and run, but for what the sentence says."""
    impossible = f"{one.impossible:.2%} of the tokens could not have been sampled so" if one.impossible else ""
    lines = {"tried": one.experiment, "seen": one.seen, "but": impossible, "fix": one.remedy, "next": one.command}
    return ((what, visible(text)) for what, text in lines.items() if text and text not in found.sentence)


def ruled_out(found: Diagnosis) -> list[str]:
    """Causes that were tried and explain nothing, with what they gain."""
    return [
        visible(one.cause) + ("" if one.gain is None else f" (gain {one.gain + 0.0:+.2g})")
        for one in found.findings
        if one.outcome is Outcome.RULED_OUT
    ]


def untested(found: Diagnosis) -> list[tuple[str, str, str]]:
    """(cause, why it was not tested, what to run) of each that was not; none where there was nothing to test it on."""
    return [
        (visible(one.cause), visible(one.seen), visible(one.command))
        for one in found.findings
        if one.outcome is Outcome.UNTESTED and one.seen != NO_EXCESS
    ]


def about(found: Diagnosis) -> list[str]:
    """What was looked at, what it is held against, and what could not be looked at."""
    return [
        f"mean |d| {number(found.mean_abs_d)} nats (each cut at 1) over {found.tokens:,} tokens of {found.prompts:,} "
        f"prompts; noise {number(found.noise)}: {visible(found.noise_source)}",
        *(f"note: {visible(note)}" for note in found.notes),
        f"run {visible(found.run)}, readings {visible(found.rollout_reading)} and {visible(found.trainer_reading)}",
    ]


def _with_error(value: float | None, error: float | None) -> str:
    if value is None:
        return "-"
    return number(value) if error is None else f"{number(value)} +- {error:.1g}"


def _answer(sentence: str) -> Text:
    text = Text(visible(sentence))
    if known := _ANSWERS.match(text.plain):
        text.stylize("bold", 0, known.end())
    return text


def _numbers(found: Diagnosis) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for i, name in enumerate(HEAD):
        table.add_column(name, justify="right" if i > 1 else "left", no_wrap=i > 0, overflow="fold")
    for one, (cause, outcome, *numbers) in zip(found.causes, cause_rows(found), strict=True):
        table.add_row(Text(cause), Text(outcome, style=STYLES[one.outcome]), *numbers)
    return table


def _details(found: Diagnosis) -> Iterator[RenderableType]:
    for one in found.causes:
        if lines := list(details_of(found, one)):
            yield from (Text(), Text(name_of(one), style="bold"), _pairs(lines))


def _untested_table(found: Diagnosis) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 1))
    table.add_column(max_width=24, overflow="fold")
    table.add_column(overflow="fold")
    for cause, why, command in untested(found):
        table.add_row(Text(cause), Text(why))
        if command:
            table.add_row(Text("  next", style="dim"), Text(command, style="cyan"))
    return table


def _pairs(lines: Sequence[tuple[str, str]]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 1))
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for what, text in lines:
        table.add_row(what, Text(text))
    return table


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("onepolicy.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(visible=visible)
    return environment.get_template("why.html")
