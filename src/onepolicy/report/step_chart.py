"""The mismatch over the steps of a training as inline SVG, in the manner of `charts.py` but wider."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby

from markupsafe import Markup, escape

from onepolicy.records.step import StepEvent
from onepolicy.records.timeline import Timeline
from onepolicy.report.charts import Scale
from onepolicy.report.step_table import LAG_GROUPS, Stretch, stretches

WIDTH, HEIGHT = 880, 380
MOST_POINTS = 400
_CHARACTER = 7
"""units that one takes in the chart, about"""
TITLES = {"level": "another level", "growing": "weights not sent", "single step": "single step"}
"""kind of an event -> what it is called"""
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 16, 46, 46


def step_chart(timeline: Timeline) -> Markup:
    """Same-version k3 with its bounds, k3 of stale tokens by lag, the limit, and what happened."""
    points = stretches(timeline.records, MOST_POINTS)
    x, y = _x(points), _y(points, timeline.mean_kl_limit)
    parts = [
        *(_shade(x, event) for event in timeline.events),
        _y_ticks(y),
        _x_ticks(x),
        _band(points, x, y),
        _limit(timeline.mean_kl_limit, y),
        *(_line(points, x, y, f"lag{g}", [p.stale_k3[g] for p in points]) for g in range(len(LAG_GROUPS))),
        _line(points, x, y, "own", [p.k3 for p in points]),
        *(_mark(x, event, i) for i, event in enumerate(timeline.events)),
        *(_flag(x, event, i) for i, event in enumerate(timeline.events)),
    ]
    about = (
        f"Mean k3 of {len(timeline.records)} steps on a logarithmic axis, with {len(timeline.events)} events marked."
    )
    return Markup(  # noqa: S704 - every text in it is escaped
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="steps-title steps-desc">'
        f'<title id="steps-title">k3 over the steps</title><desc id="steps-desc">{escape(about)}</desc>'
        f"{''.join(parts)}</svg>"
    )


def letter(i: int) -> str:
    """a, b, c ... by which an event is known in the chart and in the list."""
    return chr(ord("a") + i) if i < 26 else f"{letter(i // 26 - 1)}{letter(i % 26)}"


def _x(points: Sequence[Stretch]) -> Scale:
    first, last = (points[0].first, points[-1].last) if points else (0, 1)
    return Scale(low=first, high=max(last, first + 1), start=_LEFT, end=WIDTH - _RIGHT)


def _y(points: Sequence[Stretch], limit: float) -> Scale:
    found = [v for p in points for v in (p.k3, p.low, p.high, *p.stale_k3) if math.isfinite(v) and v > 0]
    low, high = min([*found, limit]), max([*found, limit])
    low, high = 10.0 ** math.floor(math.log10(low)), 10.0 ** math.ceil(math.log10(high))
    return Scale(low=low, high=high if high > low else low * 10, start=HEIGHT - _BOTTOM, end=_TOP, log=True)


def _middle(point: Stretch, x: Scale) -> float:
    return x.at((point.first + point.last) / 2)


def _line(points: Sequence[Stretch], x: Scale, y: Scale, style: str, values: Sequence[float]) -> str:
    """Broken where there is no value; a value that stands alone is a dot."""
    path, drawing = [], False
    for point, value in zip(points, values, strict=True):
        if not (math.isfinite(value) and value > 0):
            drawing = False
            continue
        path.append(f"{'L' if drawing else 'M'}{_middle(point, x):g} {y.at(value):g}{'' if drawing else 'h0'}")
        drawing = True
    return f'<path class="{style}" d="{"".join(path)}"/>' if path else ""


def _band(points: Sequence[Stretch], x: Scale, y: Scale) -> str:
    """Broken where a stretch has no bounds."""
    drawn = []
    for known, run in groupby(points, key=lambda p: p.low > 0 and math.isfinite(p.high)):
        part = list(run)
        if known and len(part) > 1:
            there = [f"{_middle(p, x):g} {y.at(p.high):g}" for p in part]
            back = [f"{_middle(p, x):g} {y.at(p.low):g}" for p in reversed(part)]
            drawn.append(f"M{'L'.join([*there, *back])}z")
    return f'<path class="band" d="{"".join(drawn)}"/>' if drawn else ""


def _limit(limit: float, y: Scale) -> str:
    at = y.at(limit)
    return (
        f'<path class="limit" d="M{_LEFT} {at:g}H{WIDTH - _RIGHT}"/>'
        f'<text x="{WIDTH - _RIGHT - 4}" y="{at - 5:g}" text-anchor="end">limit {limit:g}</text>'
    )


def _shade(x: Scale, event: StepEvent) -> str:
    """The steps of an event that ended; its beginning alone if it did not."""
    if event.last is None:
        return ""
    start, end = x.at(event.first), x.at(event.last)
    size = f'width="{max(end - start, 2):g}" height="{HEIGHT - _BOTTOM - _TOP}"'
    return f'<rect class="during" x="{start:g}" y="{_TOP}" {size}/>'


def _mark(x: Scale, event: StepEvent, number: int) -> str:
    return f'<path class="event" d="M{x.at(event.first):g} {_row(number) - 10}V{HEIGHT - _BOTTOM}"/>'


def _flag(x: Scale, event: StepEvent, number: int) -> str:
    at = x.at(event.first)
    text = f"{letter(number)} {TITLES[event.kind]}, step {event.first}"
    side, anchor = (4, "start") if at + _CHARACTER * len(text) < WIDTH else (-4, "end")
    return f'<text class="flag" x="{at + side:g}" y="{_row(number)}" text-anchor="{anchor}">{escape(text)}</text>'


def _row(number: int) -> int:
    """Two rows of names in turn, so that neighbours do not cover each other."""
    return 14 + 15 * (number % 2)


def _y_ticks(y: Scale) -> str:
    return "".join(
        f'<path class="grid" d="M{_LEFT} {y.at(t):g}H{WIDTH - _RIGHT}"/>'
        f'<text x="{_LEFT - 6}" y="{y.at(t) + 4:g}" text-anchor="end">{t:.0e}</text>'.replace("e-0", "e-")
        for t in y.ticks()
    ) + (
        f'<text x="14" y="{HEIGHT / 2:g}" transform="rotate(-90 14 {HEIGHT / 2:g})" text-anchor="middle">'
        "k3, nats per token</text>"
    )


def _x_ticks(x: Scale) -> str:
    bottom = HEIGHT - _BOTTOM
    ticks = "".join(
        f'<path class="grid" d="M{x.at(t):g} {_TOP}V{bottom}"/>'
        f'<text x="{x.at(t):g}" y="{bottom + 18}" text-anchor="middle">{t:g}</text>'
        for t in x.ticks()
    )
    return f'{ticks}<text x="{(_LEFT + WIDTH) / 2:g}" y="{HEIGHT - 8}" text-anchor="middle">step</text>'
