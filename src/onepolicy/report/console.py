"""A judgement on a terminal, 80 columns wide or more."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from onepolicy.records.verdict import Judgement, Status, Verdict, WorstRollout
from onepolicy.visible import visible

STYLES = {Status.PASS: "green", Status.FAIL: "red", Status.UNKNOWN: "yellow"}
_WORST_SHOWN = 3
_SHOWN_METRICS = (
    ("mean_abs_d", "mean |d|"),
    ("abs_d_p50", "median |d|"),
    ("abs_d_p99", "p99 |d|"),
    ("max_abs_d", "max |d|"),
    ("k1", "k1"),
    ("k3", "k3"),
    ("mean_importance_ratio", "mean ratio"),
    ("max_probability_difference", "max |dp|"),
    ("correlation", "correlation"),
    ("top1_agreement", "top-1 agreement"),
    ("bitwise_share", "bitwise equal"),
    ("sequence_ratio_outside", "rollout ratio outside [0.5, 2]"),
)


def show(judgement: Judgement, console: Console) -> None:
    """Print the verdict first, then the checks, the numbers, the gaps by language and the worst tokens."""
    parts: list[RenderableType] = [headline(judgement.sentence, judgement.status)]
    parts += [Text(), checks_table(judgement.verdicts)]
    if judgement.metrics:
        parts += [Text(), metrics_table(judgement)]
    if any(counts["absent"] for counts in judgement.coverage_by_language.values()):
        parts += [Text(), language_table(judgement)]
    if judgement.worst_rollouts and judgement.status is not Status.PASS:
        parts += [Text(), worst_tokens(judgement.worst_rollouts[:_WORST_SHOWN])]
    if judgement.run:
        parts += [Text(), Text(f"run {visible(judgement.run)}; report in its judgements/", style="dim")]
    console.print(Group(*parts))


def headline(sentence: str, status: Status) -> Text:
    """The answer in one sentence."""
    word, _, rest = visible(sentence).partition(":")
    return Text.assemble((f"{word}:", f"bold {STYLES[status]}"), rest)


def checks_table(verdicts: Sequence[Verdict]) -> Table:
    """One row for each check; informative ones are marked."""
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for verdict in verdicts:
        table.add_row(_mark(verdict), Text(visible(verdict.check)), Text(visible(verdict.message)))
    return table


def metrics_table(judgement: Judgement) -> Table:
    """The numbers, two to a line; d is trainer minus rollout, in nats."""
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    shown = [(label, judgement.metrics[key]) for key, label in _SHOWN_METRICS if key in judgement.metrics]
    cells = [f"{label} {number(value)}" for label, value in shown]
    for left, right in zip(cells[::2], [*cells[1::2], ""], strict=False):
        table.add_row(left, right)
    return table


def language_table(judgement: Judgement) -> Table:
    """Tokens without a logprob, by the language of the prompt."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("language")
    table.add_column("tokens", justify="right")
    table.add_column("without a logprob", justify="right")
    for language, counts in judgement.coverage_by_language.items():
        share = counts["absent"] / counts["compared"] if counts["compared"] else 0.0
        table.add_row(Text(visible(language)), str(counts["compared"]), f"{counts['absent']} ({share:.0%})")
    return table


def worst_tokens(rollouts: tuple[WorstRollout, ...]) -> Group:
    """The tokens that differ most, in their text."""
    lines: list[RenderableType] = [Text("worst tokens", style="bold")]
    for rollout in rollouts:
        worst = rollout.worst
        lines.append(
            Text(
                f"{visible(rollout.rollout_id)} [{worst.position}]  rollout {worst.rollout_logprob:.4g}  "
                f"trainer {worst.trainer_logprob:.4g}"
            )
        )
        text = Text.assemble(
            visible(rollout.before)[-48:],
            (f">>{visible(worst.text) or '(nothing)'}<<", "bold"),
            visible(rollout.after)[:24],
        )
        lines.append(Padding(text, (0, 0, 0, 2)))
    return Group(*lines)


def number(value: float) -> str:
    """Three significant digits."""
    return f"{value + 0.0:.3g}"  # -0.0 is shown as 0


def _mark(verdict: Verdict) -> Text:
    """The status; of an informative check, "note" where it does not pass."""
    if verdict.required:
        return Text(verdict.status.value, style=STYLES[verdict.status])
    return Text("pass" if verdict.status is Status.PASS else "note", style="dim")
