"""Charts as inline SVG: values in, text out. Colours come from the page's CSS variables, so dark mode works.

Every chart is 440 units wide and readable at 360 pixels. What it shows also stands in a table beside it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from onepolicy.records.tables import Bin, Bucket, Points

WIDTH = 440
_LEFT, _RIGHT, _BOTTOM = 58, 22, 46


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Numbers -> places on an axis."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        """Where a value stands; beyond the ends it stands at the end."""
        low, high = (math.log10(self.low), math.log10(self.high)) if self.log else (self.low, self.high)
        here = self._here(value, low)
        share = (min(max(here, low), high) - low) / (high - low)
        return round(self.start + share * (self.end - self.start), 1)

    def _here(self, value: float, low: float) -> float:
        if not self.log:
            return value
        return math.log10(value) if value > 0 else low

    def ticks(self) -> list[float]:
        """A handful of round numbers."""
        if self.log:
            lowest, highest = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
            return [10.0**e for e in range(lowest, highest + 1, max(math.ceil((highest - lowest) / 5), 1))]
        step = _round_step((self.high - self.low) / 5)
        first = math.ceil(self.low / step - 1e-9)
        return [i * step for i in range(first, math.floor(self.high / step + 1e-9) + 1)]


def scatter(points: Points) -> Markup:
    """The two logprobs of each sampled token; equal ones lie on the line."""
    height = 380
    low = _floor_of([*points.rollout, *points.trainer])
    x = Scale(low=low, high=0.0, start=_LEFT, end=WIDTH - _RIGHT)
    y = Scale(low=low, high=0.0, start=height - _BOTTOM, end=12)
    dots = "".join(f"M{x.at(p):g} {y.at(q):g}h0" for p, q in zip(points.rollout, points.trainer, strict=True))
    return _svg(
        "scatter",
        height,
        (
            "Logprobs of both sides",
            f"{len(points.rollout)} tokens; the further from the diagonal, the more they differ.",
        ),
        [
            _x_axis(x, height, "rollout logprob"),
            _y_axis(y, "trainer logprob"),
            f'<path class="same" d="M{x.start} {y.start}L{x.end} {y.end}"/>',
            f'<path class="points" d="{dots}"/>',
        ],
    )


def histogram(bins: Sequence[Bin]) -> Markup:
    """How |d| is distributed: tokens the trainer finds likelier above the line, less likely below."""
    height = 280
    most = max(max(b.trainer_higher, b.trainer_lower) for b in bins)
    x = Scale(low=bins[0].low, high=bins[-1].low * 2, start=_LEFT, end=WIDTH - _RIGHT, log=True)
    y = Scale(low=-most, high=most, start=height - _BOTTOM, end=12)
    bars = []
    for b in bins:
        left, right, middle = x.at(b.low), x.at(b.low * 2), y.at(0)
        for count, kind in ((b.trainer_higher, "higher"), (-b.trainer_lower, "lower")):
            top = min(y.at(count), middle)
            size = f'width="{max(right - left - 1, 1):g}" height="{abs(y.at(count) - middle):g}"'
            bars.append(f'<rect class="{kind}" x="{left:g}" y="{top:g}" {size}/>')
    return _svg(
        "histogram",
        height,
        ("Distribution of d", "Number of tokens by the size of d, with the trainer higher above, lower below."),
        [
            _x_axis(x, height, "|d| in nats, each bar twice the one before"),
            _counts_axis(y, most),
            *bars,
            f'<path class="axis" d="M{x.start} {y.at(0)}H{x.end}"/>',
            _text(x.start + 6, 24, "trainer higher"),
            _text(x.start + 6, height - _BOTTOM - 8, "trainer lower"),
        ],
    )


def by_bucket(name: str, buckets: Sequence[Bucket]) -> Markup:
    """Mean and largest |d| of each bucket, on a logarithmic axis."""
    values = [v for b in buckets for v in (b.mean_abs_d, b.max_abs_d) if v > 0]
    height = 28 * len(buckets) + _BOTTOM + 30
    x = _decades(values, start=138, end=WIDTH - _RIGHT)
    rows = [_bucket_row(x, 38 + 28 * i, bucket) for i, bucket in enumerate(buckets)]
    legend = [
        f'<circle class="mean" cx="{x.start + 6}" cy="12" r="4.5"/>',
        _text(x.start + 16, 16, "mean"),
        f'<path class="max" d="{_diamond(x.start + 76, 12)}"/>',
        _text(x.start + 86, 16, "largest"),
    ]
    title = (f"|d| by {name}", f"Mean and largest |d| in nats of {len(buckets)} groups of tokens.")
    return _svg(f"by-{name}", height, title, [_x_axis(x, height, "|d| in nats"), *legend, *rows])


def _bucket_row(x: Scale, y: float, bucket: Bucket) -> str:
    name = f'<text x="{x.start - 8:g}" y="{y + 4:g}" text-anchor="end">{escape(bucket.name)}</text>'
    if bucket.max_abs_d == 0:
        return name + _text(x.start + 6, y + 4, "equal")  # a logarithmic axis has no zero
    mean, largest = x.at(bucket.mean_abs_d), x.at(bucket.max_abs_d)
    return (
        f"{name}"
        f'<path class="range" d="M{mean:g} {y:g}H{largest:g}"/>'
        f'<circle class="mean" cx="{mean:g}" cy="{y:g}" r="4.5"/>'
        f'<path class="max" d="{_diamond(largest, y)}"/>'
    )


def _diamond(x: float, y: float) -> str:
    return f"M{x - 5:g} {y:g}l5 -5l5 5l-5 5z"


def _decades(values: Sequence[float], *, start: float, end: float) -> Scale:
    """A logarithmic axis around the values; around 1e-3 if there is none."""
    low, high = min(values, default=1e-3), max(values, default=1e-3)
    low, high = 10.0 ** math.floor(math.log10(low)), 10.0 ** math.ceil(math.log10(high))
    return Scale(low=low, high=high if high > low else low * 10, start=start, end=end, log=True)


def _floor_of(values: Iterable[float]) -> float:
    return min(math.floor(min(values, default=-1.0)), -1)


def _round_step(step: float) -> float:
    power = 10.0 ** math.floor(math.log10(step))
    return next(power * m for m in (1, 2, 5, 10) if power * m >= step * 0.999)


def _x_axis(scale: Scale, height: float, label: str) -> str:
    bottom = height - _BOTTOM
    ticks = "".join(
        f'<path class="grid" d="M{scale.at(t):g} 30V{bottom}"/>'
        f'<text x="{scale.at(t):g}" y="{bottom + 18}" text-anchor="middle">{_tick(t)}</text>'
        for t in scale.ticks()
    )
    middle = (scale.start + scale.end) / 2
    return f'{ticks}<text x="{middle:g}" y="{height - 8}" text-anchor="middle">{escape(label)}</text>'


def _tick(value: float) -> str:
    """As short as it can be: 1e-5, not 1e-05."""
    return f"{value:g}" if value == 0 or abs(value) >= 0.001 else f"{value:.0e}".replace("e-0", "e-")


def _y_axis(scale: Scale, label: str) -> str:
    ticks = "".join(
        f'<path class="grid" d="M{_LEFT} {scale.at(t):g}H{WIDTH - _RIGHT}"/>'
        f'<text x="{_LEFT - 6}" y="{scale.at(t) + 4:g}" text-anchor="end">{t:g}</text>'
        for t in scale.ticks()
    )
    middle = (scale.start + scale.end) / 2
    turned = f'transform="rotate(-90 14 {middle:g})" text-anchor="middle"'
    return f'{ticks}<text x="14" y="{middle:g}" {turned}>{escape(label)}</text>'


def _counts_axis(scale: Scale, most: int) -> str:
    return "".join(
        f'<text x="{_LEFT - 6}" y="{scale.at(count) + 4:g}" text-anchor="end">{abs(count):,}</text>'
        for count in (most, 0, -most)
    )


def _text(x: float, y: float, text: str) -> str:
    return f'<text x="{x:g}" y="{y:g}">{escape(text)}</text>'


def _svg(name: str, height: float, words: tuple[str, str], parts: Iterable[str]) -> Markup:
    title, description = words
    name = "".join(c if c.isalnum() else "-" for c in name)
    return Markup(  # noqa: S704 - every text in it is escaped above
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-labelledby="{name}-title {name}-desc">'
        f'<title id="{name}-title">{escape(title)}</title><desc id="{name}-desc">{escape(description)}</desc>'
        f"{''.join(parts)}</svg>"
    )
