"""KL over the runs of a history as inline SVG, in the manner of `step_chart.py`."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup, escape

from onepolicy.records.past import PastRun
from onepolicy.records.verdict import Status
from onepolicy.report.charts import Scale

WIDTH, HEIGHT = 880, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 16, 30, 46
_DATES = 6
_MOST_MARKS = 40
"""lines at changes; more would be a grey area"""


def history_chart(rows: Sequence[PastRun]) -> Markup:
    """One mark for each run that has a number, with its bounds; dashed lines where something changed; the limit.

    Runs stand side by side at equal distances, whatever the time between them. Circle: pass; cross: fail; ring:
    unknown. A number of 0, where both sides are equal bit for bit, stands on the lower edge.
    """
    y = _y(rows)
    x = Scale(low=0, high=max(len(rows) - 1, 1), start=_LEFT + 12, end=WIDTH - _RIGHT - 12)
    parts = [_y_ticks(y), *_changes(rows, x), *_limit(rows, y), *_dates(rows, x)]
    parts += [_mark(row, x.at(i), y) for i, row in enumerate(rows)]
    about = f"The number of each of {len(rows)} runs on a logarithmic axis, with its bounds where it has them."
    return Markup(  # noqa: S704 - every text in it is escaped
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="runs-title runs-desc">'
        f'<title id="runs-title">KL over the runs</title><desc id="runs-desc">{escape(about)}</desc>'
        f"{''.join(parts)}</svg>"
    )


def _y(rows: Sequence[PastRun]) -> Scale:
    given = [v for row in rows for v in (row.kl, row.kl_low, row.kl_high, row.kl_limit) if v is not None]
    found = [value for value in given if value > 0 and math.isfinite(value)] or [1e-4]
    low, high = 10.0 ** math.floor(math.log10(min(found))), 10.0 ** math.ceil(math.log10(max(found)))
    return Scale(low=low, high=high if high > low else low * 10, start=HEIGHT - _BOTTOM, end=_TOP, log=True)


def _mark(row: PastRun, at: float, y: Scale) -> str:
    if row.kl is None or math.isnan(row.kl):
        return f'<path class="missing" d="M{at:g} {HEIGHT - _BOTTOM}v-8"/>'
    where = y.at(row.kl)
    bounds = row.kl_low is not None and row.kl_high is not None
    line = f'<path class="range" d="M{at:g} {y.at(row.kl_low or 0)}V{y.at(row.kl_high or 0)}"/>' if bounds else ""
    if row.status is Status.FAIL:
        return f'{line}<path class="bad" d="M{at - 4:g} {where - 4:g}l8 8m0 -8l-8 8"/>'
    kind = "good" if row.status is Status.PASS else "open"
    return f'{line}<circle class="{kind}" cx="{at:g}" cy="{where:g}" r="4"/>'


def _changes(rows: Sequence[PastRun], x: Scale) -> list[str]:
    places = [i for i, row in enumerate(rows) if row.changed][-_MOST_MARKS:]
    return [f'<path class="event" d="M{x.at(i):g} {_TOP}V{HEIGHT - _BOTTOM}"/>' for i in places]


def _limit(rows: Sequence[PastRun], y: Scale) -> list[str]:
    """That of the newest run which has one."""
    limit = next((row.kl_limit for row in reversed(rows) if row.kl_limit), None)
    if limit is None:
        return []
    at = y.at(limit)
    return [
        f'<path class="limit" d="M{_LEFT} {at:g}H{WIDTH - _RIGHT}"/>',
        f'<text x="{WIDTH - _RIGHT - 4}" y="{at - 5:g}" text-anchor="end">limit {limit:g}</text>',
    ]


def _dates(rows: Sequence[PastRun], x: Scale) -> list[str]:
    step = max(math.ceil(len(rows) / _DATES), 1)
    shown = [(i, row) for i, row in enumerate(rows) if i % step == 0 and row.time is not None]
    bottom = HEIGHT - _BOTTOM + 18
    return [
        f'<text x="{x.at(i):g}" y="{bottom}" text-anchor="middle">{escape(f"{row.time:%Y-%m-%d}")}</text>'
        for i, row in shown
    ]


def _y_ticks(y: Scale) -> str:
    return "".join(
        f'<path class="grid" d="M{_LEFT} {y.at(t):g}H{WIDTH - _RIGHT}"/>'
        f'<text x="{_LEFT - 6}" y="{y.at(t) + 4:g}" text-anchor="end">{t:.0e}</text>'.replace("e-0", "e-")
        for t in y.ticks()
    ) + (
        f'<text x="14" y="{HEIGHT / 2:g}" transform="rotate(-90 14 {HEIGHT / 2:g})" text-anchor="middle">'
        "nats per token</text>"
    )
