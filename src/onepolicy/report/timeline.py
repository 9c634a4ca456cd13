"""A timeline on a terminal, 80 columns wide or more, and as one HTML file that opens offline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from onepolicy.records.timeline import Timeline
from onepolicy.records.verdict import Status
from onepolicy.report.console import checks_table, headline
from onepolicy.report.step_chart import TITLES, letter, step_chart
from onepolicy.report.step_table import LAG_GROUPS, Stretch, stretches
from onepolicy.version import VERSION
from onepolicy.visible import visible

HEAD = ("steps", "tokens", "k3", "99 % bounds of a step", "stale tokens", "their k3", "lag")
_BARS = "▁▂▃▄▅▆▇█"
_COLUMNS = 60
_ROWS, _MOST_ROWS = 10, 200
_SHOWN_EVENTS = 12
_SHOWN_ALARMS = 5
_ICONS = {Status.PASS: "✓", Status.FAIL: "✗", Status.UNKNOWN: "?"}


def show_timeline(timeline: Timeline, console: Console) -> None:
    """Print the answer, what happened under a line of the level, the checks, the first alarms and the numbers."""
    parts: list[RenderableType] = [headline(timeline.sentence, timeline.status)]
    parts += [Text(visible(note), style="dim") for note in timeline.notes]
    if timeline.records:
        parts += [Text(), *_sparkline(timeline)]
    for i, event in enumerate(timeline.events[:_SHOWN_EVENTS]):
        parts.append(Text.assemble((f"{letter(i)} {TITLES[event.kind]}: ", "bold"), visible(event.message)))
    if len(timeline.events) > _SHOWN_EVENTS:
        parts.append(Text(f"and {len(timeline.events) - _SHOWN_EVENTS} more (--json, --html)", style="dim"))
    parts += [Text(), checks_table(timeline.verdicts)]
    parts += _alarms(timeline)
    if timeline.records:
        parts += [Text(), _table(stretches(timeline.records, _ROWS))]
    console.print(Group(*parts))


def timeline_html(timeline: Timeline) -> str:
    """The page. Its first screen holds the verdict and the chart."""
    points = stretches(timeline.records, _MOST_ROWS)
    return _template().render(
        timeline=timeline,
        icon=_ICONS[timeline.status],
        sentence=visible(timeline.sentence).partition(": ")[2],
        subject=subject(timeline),
        chart=step_chart(timeline) if timeline.records else "",
        lags=[(name, g) for g, (_, _, name) in enumerate(LAG_GROUPS) if any(p.stale_k3[g] >= 0 for p in points)],
        events=[(letter(i), TITLES[event.kind], event) for i, event in enumerate(timeline.events)],
        head=HEAD,
        rows=[cells(point) for point in points],
        most_rows=_MOST_ROWS,
        version=VERSION,
    )


def subject(timeline: Timeline) -> str:
    """What was looked at."""
    if not timeline.records:
        return f"No step in {timeline.path}."
    first, last = timeline.records[0].step, timeline.records[-1].step
    tokens = sum(record.valid for record in timeline.records)
    what = "kept by a monitor" if timeline.source == "monitor" else "from recorded files"
    return f"{len(timeline.records):,} steps ({first} to {last}) with {tokens:,} compared tokens, {what}."


def cells(point: Stretch) -> tuple[str, ...]:
    """A row under `HEAD`."""
    bounds = "-" if math.isnan(point.low) else f"{point.low:.2g} to {point.high:.2g}"
    return (
        point.steps,
        f"{point.tokens:,}",
        _number(point.k3),
        bounds,
        f"{point.stale:,}",
        _number(point.all_stale_k3),
        "-" if point.newest_lag is None else str(point.newest_lag),
    )


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2g}"


def _sparkline(timeline: Timeline) -> list[RenderableType]:
    """One character for a few steps; letters below it where something began."""
    points = stretches(timeline.records, _COLUMNS)
    known = [p.k3 for p in points if p.k3 > 0 and math.isfinite(p.k3)]
    if not known:
        return [Text("No token comes from the trainer's own weights, so there is no level to show.", style="dim")]
    low, high = math.log(min(known)), math.log(max(known))
    marks = [" "] * len(points)
    for i, event in enumerate(timeline.events):
        at = next((j for j, p in enumerate(points) if p.first <= event.first <= p.last), None)
        if at is not None:
            marks[at] = letter(i)[-1]
    span = f"steps {points[0].first} to {points[-1].last}, {min(known):.2g} to {max(known):.2g} (log)"
    bars = "".join(_bar(p.k3, low, high) for p in points)
    line: list[RenderableType] = [Text(f"k3 of the same weights, {span}", style="dim"), Text(bars)]
    return [*line, Text("".join(marks).rstrip(), "bold")] if timeline.events else line


def _bar(value: float, low: float, high: float) -> str:
    if math.isnan(value):
        return " "
    if value <= 0:
        return "_"
    if math.isinf(value):
        return "!"
    share = (math.log(value) - low) / max(high - low, math.log(2))
    return _BARS[min(int(share * len(_BARS)), len(_BARS) - 1)]


def _alarms(timeline: Timeline) -> list[RenderableType]:
    """Those that the checks do not show already."""
    said = "\n".join(verdict.message for verdict in timeline.verdicts)
    others = [alarm for alarm in timeline.alarms if alarm.message not in said]
    if not others:
        return []
    shown = [Text.assemble((f"{a.kind}: ", "bold"), visible(a.message)) for a in others[:_SHOWN_ALARMS]]
    more = len(others) - len(shown)
    rest = [Text(f"and {more} more (--json, --html)", style="dim")] if more else []
    return [Text(), Text("other alarms, as the steps came", style="dim"), *shown, *rest]


def _table(points: Sequence[Stretch]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in HEAD:
        table.add_column(name, justify="left" if name == "steps" else "right", no_wrap=True)
    for point in points:
        table.add_row(*cells(point))
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
    return environment.get_template("timeline.html")
