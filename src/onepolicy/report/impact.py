"""What a mismatch does to training: on a terminal, 80 columns wide or more, and as a section of a page."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from onepolicy.records.impact import Impact, Mean, Replayed, Sequences, ShiftedClip, UpdatedSide, Weights
from onepolicy.visible import visible

Rows = list[tuple[str, ...]]
NUMBERS_HEAD = ("before any update", "value", "95 % interval")
SHIFTED_HEAD = ("true ratio", "what the clip does", "of", "share", "95 % interval")
SEQUENCE_HEAD = ("sequence ratio", "p01", "p25", "median", "p75", "p99", "outside")
REPLAY_HEAD = ("correction", "tokens", "rolls", "ESS", "mean w", "var w", "|w-r|", "|w-R|", "lost")
OPTIONS_HEAD = ("correction", "verl: algorithm.rollout_correction", "TRL: GRPOConfig")
LEGEND = (
    "tokens, rolls: kept, %; ESS: %; w: weight of a token, 0 if masked; r: its ratio, R: its rollout's product; "
    "lost: rollouts with a reward above 0 of which nothing is kept"
)


def show_impact(found: Impact, console: Console) -> None:
    """Print what training would meet, what each correction would do to it, and how to choose one."""
    parts: list[RenderableType] = [Text(headline(found), style="bold"), Text()]
    parts += [
        _table(NUMBERS_HEAD, number_rows(found)),
        Text(),
        _table(SHIFTED_HEAD, shifted_rows(found), left=3),
        Text(),
    ]
    parts += [_table(SEQUENCE_HEAD, sequence_rows(found.sequences)), Text()]
    parts += [_table(REPLAY_HEAD, replay_rows(found)), Text(legend(found), style="dim"), Text()]
    parts.append(_options(found))
    parts += [Text(), *(Text(visible(f"note: {note}"), style="dim") for note in found.notes)]
    console.print(Group(*parts, Text(f"run {visible(found.run)}", style="dim")))


def impact_section(found: Impact) -> Markup:
    """The same as HTML without a page around it: a heading, a paragraph and tables in the classes of the report."""
    tables = [
        _html("Before any update", NUMBERS_HEAD, number_rows(found)),
        _html("The clip", SHIFTED_HEAD, shifted_rows(found)),
        _html("Sequence ratios", SEQUENCE_HEAD, sequence_rows(found.sequences)),
        _html("Corrections replayed", REPLAY_HEAD, replay_rows(found)),
        _html("Options", OPTIONS_HEAD, option_rows(found)),
    ]
    notes = [Markup('<p class="soft">{}</p>').format(visible(note)) for note in (legend(found), *found.notes)]
    head = Markup("<h2>Impact on training</h2>\n<p>{}</p>").format(headline(found))
    return Markup("\n").join([head, *tables, *notes])


def legend(found: Impact) -> str:
    """What the columns of the corrections are, and of how many rollouts `lost` is."""
    return LEGEND if found.correct is None else f"{LEGEND}; {found.correct:,} have one"


def headline(found: Impact) -> str:
    """The shares that matter first, in one sentence."""
    clip = found.clipping
    lost = f"{_share(clip.above.value)} of the tokens lie above the clip range and {_share(clip.below.value)} below it"
    if clip.lost is not None:
        lost = f"{_share(clip.lost.value)} of the tokens with an advantage lose their gradient to the clip"
    return f"Before any update {lost}; the sequence weights count as {_ess(found.sequence_weights)} of the rollouts."


def number_rows(found: Impact) -> Rows:
    """Means with their intervals, and effective sample sizes."""
    clip = found.clipping
    rows = [
        _row(f"ratio above {1 + clip.epsilon_high:g} (acts if A > 0)", clip.above, share=True),
        _row(f"ratio below {1 - clip.epsilon_low:g} (acts if A < 0)", clip.below, share=True),
    ]
    if clip.lost is not None:
        rows.append(_row("gradient lost, of tokens with A != 0", clip.lost, share=True))
    rows += [_row("mean ratio (should be 1)", found.mean_ratio)]
    rows += [
        _row(f"KL term shows, {name} (should be 0)", mean)
        for name, mean in (("k1", found.kl_k1), ("k2", found.kl_k2), ("k3", found.kl_k3))
    ]
    rows.append((f"ESS of {found.token_weights.count:,} token weights", _ess(found.token_weights), ""))
    rows.append((f"ESS of {found.sequence_weights.count:,} sequence weights", _ess(found.sequence_weights), ""))
    return rows


def shifted_rows(found: Impact) -> Rows:
    """What the clip does to tokens that an update has moved; by a recorded update first, if there is one."""
    measured = [row for side in (found.updated.sides if found.updated else ()) for row in _updated_rows(side)]
    return measured + [
        _shifted_row(one, signed=bool(found.clipping.tokens_by_advantage)) for one in found.clipping.shifted
    ]


def sequence_rows(found: Sequences) -> Rows:
    """Quantiles, and the share of rollouts outside the band."""
    both = (
        ("product", found.product, found.product_outside, found.product_band),
        ("geometric", found.geometric, found.geometric_outside, found.geometric_band),
    )
    return [
        (
            name,
            *(f"{quantiles[key]:.4g}" for key in ("p01", "p25", "p50", "p75", "p99")),
            f"{_share(outside.value)} of {band[0]:g} to {band[1]:g}",
        )
        for name, quantiles, outside, band in both
    ]


def replay_rows(found: Impact) -> Rows:
    """One for each correction."""
    return [_replay_row(one) for one in found.corrections]


def option_rows(found: Impact) -> list[tuple[str, str, str]]:
    """How to choose each correction."""
    return [(one.label, one.verl or "no such option", one.trl or "no such option") for one in found.corrections]


def _replay_row(one: Replayed) -> tuple[str, ...]:
    return (
        one.label,
        f"{100 * one.kept.value:.3g}",
        f"{100 * one.rollouts_kept:.3g}",
        "" if one.effective_share is None else f"{100 * one.effective_share:.3g}",
        f"{one.mean_weight.value:.3f}",
        *(f"{value + 0.0:.2g}" for value in (one.variance, one.token_distance, one.sequence_distance)),
        "" if one.correct_lost is None else f"{one.correct_lost:,}",
    )


def _updated_rows(side: UpdatedSide) -> Rows:
    of = "above" if side.is_above else "below"
    named = (("wrongly clipped", side.wrongly_clipped), ("wrongly let through", side.wrongly_let_through))
    return [("as recorded", what, of, _share(mean.value), _interval(mean, share=True)) for what, mean in named]


def _shifted_row(one: ShiftedClip, *, signed: bool) -> tuple[str, ...]:
    what = "lets it through wrongly" if one.is_let_through else "clips it wrongly"
    of = ("A > 0" if one.is_above else "A < 0") if signed else "all tokens"
    return f"{one.true_ratio:.3g}", what, of, _share(one.share.value), _interval(one.share, share=True)


def _row(label: str, mean: Mean, *, share: bool = False) -> tuple[str, ...]:
    return label, _share(mean.value) if share else f"{mean.value:.4g}", _interval(mean, share=share)


def _interval(mean: Mean, *, share: bool) -> str:
    if mean.low is None or mean.high is None:
        return "one prompt group"
    low, high = (_share(end) if share else f"{end:.4g}" for end in (mean.low, mean.high))
    return f"{low} to {high}"


def _share(value: float) -> str:
    return f"{100 * value + 0.0:.3g} %"


def _ess(weights: Weights) -> str:
    return "nothing" if weights.effective_share is None else _share(weights.effective_share)


def _options(found: Impact) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for label, verl, trl in option_rows(found):
        table.add_row("", Text(label, style="bold"))
        table.add_row("verl", verl)
        table.add_row("TRL", trl)
    return table


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]], *, left: int = 1) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for i, name in enumerate(head):
        table.add_column(name, justify="right" if i >= left else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def _html(caption: str, head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Markup:
    cells = Markup("").join(Markup('<th scope="col">{}</th>').format(name) for name in head)
    lines = [
        Markup('<tr><th scope="row">{}</th>{}</tr>').format(
            row[0], Markup("").join(Markup('<td class="n">{}</td>').format(cell) for cell in row[1:])
        )
        for row in rows
    ]
    return Markup(
        '<div class="wide" tabindex="0" role="region" aria-label="{0}">\n<table>\n<caption>{0}</caption>\n'
        "<thead><tr>{1}</tr></thead>\n<tbody>\n{2}\n</tbody>\n</table>\n</div>"
    ).format(caption, cells, Markup("\n").join(lines))
