"""|d| before and after each correction as inline SVG, in the manner of `charts.py`."""

from __future__ import annotations

from markupsafe import Markup, escape

from onepolicy.records.finding import Diagnosis
from onepolicy.report.charts import WIDTH, Scale
from onepolicy.visible import visible

_LEFT, _RIGHT, _TOP, _ROW, _BAR = 150, 58, 22, 30, 16
_LONGEST = 20
"""letters of a name beside its bar"""


def corrected_chart(found: Diagnosis) -> Markup | None:
    """A bar for |d| as recorded and one for each correction, in multiples of the noise; None without a correction."""
    bars = corrected_bars(found)
    if len(bars) < 2:
        return None
    x = Scale(low=0.0, high=max(1.0, *(value for _, value in bars)), start=_LEFT, end=WIDTH - _RIGHT)
    height = _TOP + _ROW * len(bars) + 6
    rows = [_row(x, _TOP + _ROW * i, bar, is_first=i == 0) for i, bar in enumerate(bars)]
    noise = f'<path class="same" d="M{x.at(1.0):g} {_TOP - 6}V{height - 4}"/>'
    label = f'<text x="{x.at(1.0):g}" y="12" text-anchor="middle">noise</text>'
    return Markup(  # noqa: S704 - every text in it is escaped
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-labelledby="corrected-title corrected-desc">'
        f'<title id="corrected-title">|d| before and after each correction</title>'
        f'<desc id="corrected-desc">Mean |d|, cut at 1 nat, in multiples of the noise.</desc>'
        f"{''.join(rows)}{noise}{label}</svg>"
    )


def corrected_bars(found: Diagnosis) -> list[tuple[str, float]]:
    """(name, mean |d| over the noise): as recorded, then under each correction; empty if there is none."""
    after = [
        (visible(one.cause), one.residual)
        for one in found.causes
        if one.residual is not None and one.mean_abs_d is not None
    ]
    return [("as recorded", found.mean_abs_d / found.noise), *after] if after and found.noise > 0 else []


def _row(x: Scale, top: float, bar: tuple[str, float], *, is_first: bool) -> str:
    name, value = bar
    shown = name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"
    middle, kind = top + _BAR - 4, "lower" if is_first else "higher"
    return (
        f'<text x="{_LEFT - 8}" y="{middle}" text-anchor="end">{escape(shown)}</text>'
        f'<rect class="{kind}" x="{x.start:g}" y="{top}" width="{max(x.at(value) - x.start, 1):g}" height="{_BAR}"/>'
        f'<text x="{x.at(value) + 6:g}" y="{middle}">{_times(value)}</text>'
    )


def _times(value: float) -> str:
    return f"{value:,.0f}x" if value >= 100 else f"{value:.2g}x"
