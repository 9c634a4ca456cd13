"""A history, a run against the last green one, and a gate's answer on a terminal, 80 columns wide or more."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from onepolicy.records.past import Against, CheckMoved, GateAnswer, History, Moved, PastRun
from onepolicy.report.console import STYLES, headline
from onepolicy.visible import visible

QUANTITIES = {"mean_abs_d": "mean |d|", "k3": "mean k3", "mean_d": "mean d"}
_ROWS = 20
_CHANGES = 3
"""of one run; more are counted"""


def show_runs(history: History, console: Console) -> None:
    """Print the answer, one line for each run with what changed below it, and the newest against the last green one."""
    parts: list[RenderableType] = [headline(history.sentence, history.status), Text()]
    earlier = len(history.rows) - _ROWS
    if earlier > 0:
        parts.append(Text(f"{earlier} earlier runs are not shown (--json, --html)", style="dim"))
    before = ""
    for row in history.rows[-_ROWS:]:
        parts += run_lines(row, engines_before=before)
        before = row.engines or before
    parts += [Text(), *against_parts(history.against, history.why_not_against)]
    console.print(Group(*parts))


def show_answer(answer: GateAnswer, console: Console) -> None:
    """Print a gate's answer, and the run against the last green one."""
    parts: list[RenderableType] = [headline(answer.sentence, answer.status)]
    if answer.against is not None:
        parts += [Text(), *against_parts(answer.against, "")]
    if answer.run:
        parts += [Text(), Text(f"run {visible(answer.run)}; report in its judgements/", style="dim")]
    console.print(Group(*parts))


def run_lines(row: PastRun, *, engines_before: str) -> list[RenderableType]:
    """When, the answer, the number and the run's name; below it the engines if they are others, and what changed."""
    first = Text.assemble(
        f"{when(row):<16}  ",
        (f"{row.status.value:<7}", STYLES[row.status]),
        f"  {number_of(row):<8} {bounds_of(row):<19}  ",
        (name_of(row), "dim"),
    )
    lines: list[RenderableType] = [first]
    if row.engines and row.engines != engines_before:
        lines.append(_below(row.engines, style="dim"))
    lines += [_below(f"changed: {change}") for change in shortened(row.changed)]
    if not row.is_readable:
        lines.append(_below(row.sentence))
    return lines


def against_parts(against: Against | None, why_not: str) -> list[RenderableType]:
    """The newest run against the last green one: where to look first, what moved, and the checks that say otherwise."""
    if against is None:
        return [Text(f"Not compared with a green run: {visible(why_not)}", style="dim")]
    title = f"{PurePath(against.run).name} against the last green run, {PurePath(against.green).name}"
    parts: list[RenderableType] = [Text(visible(title), style="bold"), Text(visible(against.sentence))]
    if len(against.changed) > 1:
        parts += [_below(change) for change in against.changed]
    if against.moved and not against.is_bitwise:
        parts += [Text(), moved_table(against.moved)]
    if other_answers(against):
        parts += [Text(), *(_below(check_words(check)) for check in other_answers(against))]
    return parts


def other_answers(against: Against) -> list[CheckMoved]:
    """The checks that say something else than then, and not only another number."""
    return [check for check in against.checks if check.then_status != check.now_status]


def moved_table(moved: Sequence[Moved]) -> Table:
    """Then and now, with the interval of the difference."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("nats per token", "then", "now", "difference", "99 % interval", ""):
        table.add_column(name, justify="left" if name in ("nats per token", "") else "right", no_wrap=True)
    for one in moved:
        table.add_row(*moved_cells(one))
    return table


def moved_cells(moved: Moved) -> tuple[str, ...]:
    """One quantity as text."""
    interval = "-" if moved.low is None or moved.high is None else f"{moved.low:+.2g} to {moved.high:+.2g}"
    word = {True: "moved", False: "not significant", None: "too few prompts"}[moved.is_significant]
    name = QUANTITIES[moved.quantity]
    return (name, f"{moved.then:.3g}", f"{moved.now:.3g}", f"{moved.difference:+.2g}", interval, word)


def check_words(check: CheckMoved) -> str:
    """`mean_kl: pass 1.2e-05 -> fail 0.003`."""
    sides = ((check.then_status, check.then), (check.now_status, check.now))
    then, now = (f"{status} {value:.3g}" if value is not None else status or "absent" for status, value in sides)
    return f"{check.check}: {then} -> {now}"


def when(row: PastRun) -> str:
    """To the minute, in UTC."""
    return "time not known" if row.time is None else f"{row.time:%Y-%m-%d %H:%M}"


def number_of(row: PastRun) -> str:
    """What the check `mean_kl` decides on."""
    return "-" if row.kl is None else f"{row.kl:.2g}"


def bounds_of(row: PastRun) -> str:
    """Its bounds, where there are any."""
    return "" if row.kl_low is None or row.kl_high is None else f"{row.kl_low:.2g} to {row.kl_high:.2g}"


def name_of(row: PastRun) -> str:
    """Of the run's folder."""
    return visible(PurePath(row.run).name) if row.run else "no run is kept"


def shortened(changed: Sequence[str]) -> list[str]:
    """The first few, and how many more."""
    more = len(changed) - _CHANGES
    return [*changed[:_CHANGES], *([f"{more} more"] if more > 0 else [])]


def _below(text: str, *, style: str = "") -> Padding:
    return Padding(Text(visible(text), style=style, overflow="fold"), (0, 0, 0, 4), expand=False)
