"""A history as one HTML file that opens offline: no script, no request, nothing from a run as markup."""

from __future__ import annotations

from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from onepolicy.records.past import History, PastRun
from onepolicy.records.verdict import Status
from onepolicy.report.history_chart import history_chart
from onepolicy.report.history_console import (
    bounds_of,
    check_words,
    moved_cells,
    name_of,
    number_of,
    other_answers,
    when,
)
from onepolicy.version import VERSION
from onepolicy.visible import visible

_ICONS = {Status.PASS: "✓", Status.FAIL: "✗", Status.UNKNOWN: "?"}
_DRAWN = 300
"""runs in the chart, the newest ones; all are in the table"""


def history_html(history: History) -> str:
    """The page. Its first screen holds the answer, where to look first, and the chart."""
    return _template().render(
        history=history,
        against=history.against,
        icon=_ICONS[history.status],
        sentence=visible(history.sentence).partition(": ")[2],
        chart=history_chart(history.rows[-_DRAWN:]),
        drawn=min(len(history.rows), _DRAWN),
        damaged=[row for row in history.rows if not row.is_readable],
        rows=[(row, cells(row)) for row in reversed(history.rows)],
        moved=[] if history.against is None else [moved_cells(one) for one in history.against.moved],
        checks=[] if history.against is None else [check_words(one) for one in other_answers(history.against)],
        version=VERSION,
    )


def cells(row: PastRun) -> tuple[str, ...]:
    """When, the number, its bounds, and the run's name."""
    return when(row), number_of(row), bounds_of(row), name_of(row)


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
    return environment.get_template("history.html")
