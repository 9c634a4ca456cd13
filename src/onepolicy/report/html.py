"""A judgement as one HTML file that opens offline: no script, no request, text of models never as markup."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import PurePath

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from onepolicy.records.finding import Diagnosis
from onepolicy.records.reading import ReadingInfo
from onepolicy.records.tables import BucketTable, Points, ReportData, ShownRollout
from onepolicy.records.token_breaks import ShownBreak
from onepolicy.records.verdict import Judgement, Status, Verdict
from onepolicy.report.charts import by_bucket, histogram, scatter
from onepolicy.report.diagnosis import why_section
from onepolicy.report.round_trip import SIDES, WAYS, bytes_of, spelled
from onepolicy.visible import visible

LEVELS = (0.01, 0.05, 0.2, 0.5)
"""|d| from which a token is coloured, and more strongly coloured"""
SHOWN_POINTS = 50
"""rows of the table behind the scatter"""
_WORST_TOKENS = 5
_REACHABLE = 3
_MOST_ROWS = 200
_SAME_THING = ("same_ids", "special_tokens", "same_text", "meaning")
"""checks without which numbers of the two sides are not about one thing"""
_DRAWN = ("position", "confidence")
_ICONS = {Status.PASS: "✓", Status.FAIL: "✗", Status.UNKNOWN: "?"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """One coloured token."""

    style: str
    """CSS classes: the sign of d and how strong it is"""
    label: str
    """shown on hover and on focus"""
    text: str
    reachable: bool
    """whether the keyboard stops here"""
    position: int
    rollout_logprob: float
    trainer_logprob: float

    @property
    def d(self) -> float:
        """Trainer minus rollout."""
        return self.trainer_logprob - self.rollout_logprob


@dataclass(frozen=True, slots=True, kw_only=True)
class Spelling:
    """One side's tokens at a break, with a bar between them."""

    name: str
    text: str
    bytes: str
    """in hexadecimal"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A drawing and the table behind it."""

    title: str
    about: str
    drawing: Markup
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def html(judgement: Judgement, data: ReportData, diagnosis: Diagnosis | None = None) -> str:
    """The report. Its first screen holds the verdict and why; everything else follows in the order of questions."""
    return _template().render(
        judgement=judgement,
        data=data,
        word=judgement.status.value,
        icon=_ICONS[judgement.status],
        sentence=visible(judgement.sentence).partition(": ")[2],
        title=f"{judgement.status.value}: {PurePath(judgement.run).name}",
        subject=subject(judgement, data),
        cause="" if diagnosis is None else why_section(diagnosis),
        why=why_it_matters(judgement, data),
        next_steps=next_steps(judgement),
        charts=charts(data),
        breaks=[(broken, *spellings(broken)) for broken in data.token_breaks],
        worst=[(rollout, tokens_of(rollout)) for rollout in data.worst],
        levels=LEVELS,
        sides=side_by_side(data.rollout, data.trainer),
        most_rows=_MOST_ROWS,
        worst_tokens=_WORST_TOKENS,
    )


def subject(judgement: Judgement, data: ReportData) -> str:
    """What was compared with what."""
    counts = judgement.counts
    sides = [f"{side.engine.name} {PurePath(side.engine.model).name} ({side.engine.dtype})" for side in _sides(data)]
    amount = (
        f"{counts.get('tokens_compared', 0):,} tokens of {counts.get('rollouts', 0):,} rollouts from "
        f"{counts.get('prompt_groups', 0):,} prompts, suite {data.manifest.suite}"
    )
    return f"Rollouts of {sides[0]}, scored again by the trainer {sides[1]}: {amount}."


def why_it_matters(judgement: Judgement, data: ReportData) -> tuple[str, ...]:
    """Two sentences on importance ratio and clipping, with this run's numbers."""
    tokens = judgement.counts.get("tokens_compared", 0)
    if not tokens:
        return ("No token has a logprob on both sides, so nothing is known about the importance ratio.",)
    other = [
        v.check for v in judgement.verdicts if v.check in _SAME_THING and v.required and v.status is not Status.PASS
    ]
    if other:
        return (
            f"The two sides do not speak about the same thing ({', '.join(other)}), so the importance ratio that a "
            "trainer forms from these numbers means nothing, and neither do the charts below.",
        )
    median, largest = judgement.metrics.get("abs_d_p50", 0.0), judgement.metrics.get("max_abs_d", 0.0)
    ratio = (
        "Training weighs every sampled token by the importance ratio, trainer probability over rollout probability, "
        "which is 1 as long as both engines are the same policy. "
        f"Here half of the tokens are off by {_off(median)} or less, and the worst is off by {_off(largest)}."
    )
    return (ratio, _clipping(data.outside_clip, tokens, judgement.status))


def next_steps(judgement: Judgement) -> list[str]:
    """What to do, by the names of the checks that are in the way; what each found stands in the table of checks."""
    if judgement.status is Status.PASS:
        return ["Nothing to mend. Keep this run: a later one of the same suite and seed can be compared with it."]
    failed, unknown = (_names_of(judgement.verdicts, status) for status in (Status.FAIL, Status.UNKNOWN))
    steps = (
        [f"Mend what failed, in this order: {failed}. What each check found is in the table below."] if failed else []
    )
    if unknown:
        steps.append(f"Unknown is not a pass. Give these checks what the table says they lack: {unknown}.")
    return [*steps, "Then repeat the comparison with the command at the end of this page."]


def _names_of(verdicts: Sequence[Verdict], status: Status) -> str:
    return ", ".join(visible(v.check) for v in verdicts if v.required and v.status is status)


def charts(data: ReportData) -> list[Chart]:
    """Those for which there is something to draw."""
    found = [_scatter_chart(data.points)] if data.points.rollout else []
    if not data.histogram:
        return found  # every token is equal on both sides
    drawn = [_bucket_chart(table) for table in data.buckets if table.axis in _DRAWN and not table.is_tag]
    return [*found, *drawn, _histogram_chart(data)]


def tokens_of(rollout: ShownRollout) -> list[Token]:
    """The shown tokens with their values; the keyboard reaches the worst few."""
    d = np.array(rollout.trainer_logprobs) - np.array(rollout.rollout_logprobs)
    reachable = set(np.argsort(-np.abs(d), kind="stable")[:_REACHABLE].tolist())
    return [
        Token(
            style=style_of(float(d[i])),
            label=_label(rollout, i),
            text=_shown(rollout.pieces[i]) if rollout.pieces else f"{rollout.token_ids[i]} ",
            reachable=i in reachable,
            position=rollout.positions[i],
            rollout_logprob=rollout.rollout_logprobs[i],
            trainer_logprob=rollout.trainer_logprobs[i],
        )
        for i in range(len(d))
    ]


def spellings(broken: ShownBreak) -> tuple[Spelling, Spelling]:
    """Both spellings of a break, to be put side by side."""
    names = SIDES[broken.way]
    first, second = (
        Spelling(name=name, text=spelled(pieces), bytes=bytes_of(pieces))
        for name, pieces in zip(names, (broken.first, broken.second), strict=True)
    )
    return first, second


def style_of(d: float) -> str:
    """The CSS class of a difference: h1 to h4 if the trainer is higher, l1 to l4 if it is lower, else none."""
    level = sum(abs(d) >= edge for edge in LEVELS)
    return f"{'h' if d > 0 else 'l'}{level}" if level else ""


def side_by_side(rollout: ReadingInfo, trainer: ReadingInfo) -> list[tuple[str, str, str]]:
    """(what, of the rollout side, of the trainer side), everything that either side says of itself."""
    left, right = _facts(rollout), _facts(trainer)
    names = dict.fromkeys([*left, *right])
    return [(name, left.get(name, ""), right.get(name, "")) for name in names]


def number(value: float) -> str:
    """Three significant digits."""
    return f"{value + 0.0:.3g}"


def signed(value: float) -> str:
    """Three significant digits with a sign."""
    return f"{value + 0.0:+.3g}"


def share(part: float, whole: float) -> str:
    """In percent, so that few is not shown as none."""
    return f"{100 * part / whole:.3g} %" if whole else "-"


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("onepolicy.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(number=number, signed=signed, visible=visible, count=lambda n: f"{n:,}", mark=_mark)
    environment.globals.update(share=share, largest=_largest, ways=WAYS)
    return environment.get_template("report.html")


def _sides(data: ReportData) -> tuple[ReadingInfo, ReadingInfo]:
    return data.rollout, data.trainer


def _mark(verdict: Verdict) -> str:
    """The status; of an informative check, "note" where it does not pass."""
    return verdict.status.value if verdict.required or verdict.status is Status.PASS else "note"


def _largest(tokens: Sequence[Token]) -> list[Token]:
    return sorted(tokens, key=lambda token: -abs(token.d))[:_WORST_TOKENS]


def _off(abs_d: float) -> str:
    """By how much a ratio of exp(|d|) differs from 1."""
    if abs_d < math.log(2):
        return f"{100 * math.expm1(abs_d):.2g} %"
    return f"a factor of {math.exp(min(abs_d, 700)):.3g}"


def _clipping(outside: int, tokens: int, status: Status) -> str:
    if not outside:
        none = f"PPO's usual clip to 0.8 to 1.2 would touch none of these {tokens:,} tokens before the first update"
        return f"{none}, so what it clips later is learning." if status is Status.PASS else f"{none}."
    return (
        f"PPO's usual clip to 0.8 to 1.2 would already touch {outside:,} of {tokens:,} tokens "
        f"({share(outside, tokens)}) before the first update, and may cut their gradients although nothing was learnt."
    )


def _scatter_chart(points: Points) -> Chart:
    pairs = sorted(zip(points.rollout, points.trainer, strict=True), key=lambda pair: -abs(pair[1] - pair[0]))
    return Chart(
        title="Rollout against trainer logprob",
        about=f"Each dot is a token ({len(pairs):,}, drawn at random). Equal logprobs lie on the dashed line.",
        drawing=scatter(points),
        head=("rollout", "trainer", "d"),
        rows=tuple((number(p), number(q), signed(q - p)) for p, q in pairs[:SHOWN_POINTS]),
    )


def _bucket_chart(table: BucketTable) -> Chart:
    about = {
        "position": "Position in the completion, from 1. A difference that grows with it points to the KV cache or to "
        "rounding that adds up.",
        "confidence": "The probability that the rollout engine gave the token. Rounding shows most at low ones.",
    }
    return Chart(
        title=f"|d| by {table.axis}",
        about=about[table.axis],
        drawing=by_bucket(table.axis, table.buckets),
        head=(table.axis, "tokens", "mean |d|", "largest |d|"),
        rows=tuple((b.name, f"{b.tokens:,}", number(b.mean_abs_d), number(b.max_abs_d)) for b in table.buckets),
    )


def _histogram_chart(data: ReportData) -> Chart:
    return Chart(
        title="Distribution of d",
        about=f"d = trainer - rollout logprob, so exp(d) is the importance ratio. {data.equal:,} tokens are equal on "
        "both sides and not drawn. A lean to one side is a shift of all tokens, not noise.",
        drawing=histogram(data.histogram),
        head=("|d| from", "to", "trainer lower", "trainer higher"),
        rows=tuple(
            (number(b.low), number(b.low * 2), f"{b.trainer_lower:,}", f"{b.trainer_higher:,}") for b in data.histogram
        ),
    )


def _label(rollout: ShownRollout, i: int) -> str:
    p, q = rollout.rollout_logprobs[i], rollout.trainer_logprobs[i]
    return (
        f"position {rollout.positions[i]}, id {rollout.token_ids[i]}\n"
        f"rollout {p:.4g} ({share(math.exp(p), 1)})\ntrainer {q:.4g} ({share(math.exp(q), 1)})\nd {signed(q - p)}"
    )


def _shown(piece: str) -> str:
    """A token's text with its line breaks marked and kept, and what cannot be seen as an escape."""
    return visible(piece, keep="\n").replace("\n", "↵\n") or "∅"


def _facts(info: ReadingInfo) -> dict[str, str]:
    engine = info.engine
    facts = {
        "engine": f"{engine.name} {engine.version}",
        "spec": info.request.engine,
        "model": engine.model,
        "dtype": engine.dtype,
        "device": engine.device,
        "path": info.condition.path,
        "batch size": str(info.condition.batch_size or ""),
        "padding": info.condition.padding_side or "",
        "logprobs are": str(info.meaning),
        "weights hash": engine.weights_hash,
        "tokenizer hash": engine.tokenizer_hash,
        "vocabulary": str(engine.vocab_size or ""),
        "longest sequence": str(engine.max_length or ""),
    }
    facts |= {f"option {name}": value for name, value in engine.options.items()}
    return {name: visible(value) for name, value in (facts | info.environment).items() if value}
