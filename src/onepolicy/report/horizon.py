"""What a mismatch adds up to: on a terminal, 80 columns wide or more, and as a section of a page."""

from __future__ import annotations

from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from onepolicy.numerics.horizon.result import Components, Extrapolation, Horizon
from onepolicy.report.console import checks_table, headline, number
from onepolicy.visible import visible

POSITION_HEAD = ("position", "tokens", "mean k3", "mean |d|", "mean d")
SPREAD_HEAD = ("after", "drift -KL T", "chance", "persistent", "outside", "interval")


def show_horizon(found: Horizon, console: Console) -> None:
    """Print the answer, the checks, the spread at the measured length and at the horizon, and the error by position."""
    parts: list[RenderableType] = [headline(found.sentence, found.status), Text(), checks_table(found.verdicts)]
    if spread_rows(found):
        parts += [Text(), _table(SPREAD_HEAD, spread_rows(found)), *(Text(line, style="dim") for line in about(found))]
    if found.positions:
        parts += [Text(), Text(cohort_line(found), style="dim"), _table(POSITION_HEAD, position_rows(found))]
    parts += [Text(), Text(f"run {visible(found.run)}", style="dim")]
    console.print(Group(*parts))


def horizon_section(found: Horizon) -> Markup:
    """The same as HTML without a page around it: a heading, paragraphs and tables in the classes of the report."""
    return Markup(  # noqa: S704 - made by a template that escapes
        _template().render(
            found=found,
            about=about(found),
            cohort=cohort_line(found),
            spread_head=SPREAD_HEAD,
            spread=spread_rows(found),
            position_head=POSITION_HEAD,
            positions=position_rows(found),
        )
    )


def spread_rows(found: Horizon) -> list[tuple[str, ...]]:
    """At the measured length, and at the horizon if that is another; nats, and shares of sequence ratios."""
    there = [found.at_measured, found.extrapolation]
    known = {one.tokens: one for one in there if one is not None}
    return [_spread_row(one) for one in known.values()]


def about(found: Horizon) -> list[str]:
    """How the formula does where there is something to hold it against, and what the variance is made of."""
    lines = []
    if found.observed_outside is not None and found.at_measured is not None:
        lines.append(
            f"observed after {found.measured_tokens:,} tokens: {found.observed_outside:.1%} of "
            f"{found.counts['cohort_rollouts']:,} sequence ratios outside {found.band[0]:g} to {found.band[1]:g}"
        )
    if found.spread is not None:
        lines.append(f"per token: {_parts(found.spread)}")
    return lines


def cohort_line(found: Horizon) -> str:
    """Which rollouts stand behind the table by position."""
    return (
        f"the same {found.counts.get('cohort_rollouts', 0):,} rollouts at each position, those of "
        f"{found.measured_tokens:,} tokens or more"
    )


def position_rows(found: Horizon) -> list[tuple[str, ...]]:
    """One for each bucket; the first token of a completion is 1."""
    return [
        (
            f"{one.start + 1:,} to {one.end:,}",
            f"{one.tokens:,}",
            number(one.mean_k3),
            number(one.mean_abs_d),
            f"{one.mean_d + 0.0:+.2g}",
        )
        for one in found.positions
    ]


def _spread_row(one: Extrapolation) -> tuple[str, ...]:
    return (
        f"{one.tokens:,} tokens",
        f"{one.mean + 0.0:+.2g}",
        number(one.chance),
        number(one.persistent),
        f"{one.outside:.1%}",
        f"{one.low:.1%} to {one.high:.1%}",
    )


def _parts(spread: Components) -> str:
    return (
        f"sigma^2 {number(spread.per_token)}, omega^2 {number(spread.persistent)} "
        f"({number(spread.low)} to {number(spread.high)})"
    )


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for i, name in enumerate(head):
        table.add_column(name, justify="right" if i else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
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
    return environment.get_template("horizon.html")
