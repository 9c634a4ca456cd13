"""A ladder of legs on a terminal, and as a table for a page."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from onepolicy.numerics.legs.ladder import Ladder, Rung
from onepolicy.records.verdict import Status
from onepolicy.report.console import STYLES, headline, number
from onepolicy.visible import visible

COLUMNS = ("leg", "mean |d|", "max |d|", "bitwise", "mean d", "")
HEADER = "| leg | what differs | mean \\|d\\| | max \\|d\\| | bitwise equal | verdict |\n|---|---|---|---|---|---|"


def show(ladder: Ladder, console: Console) -> None:
    """Print the answer, the rungs in order, why those stand that do not pass, and the legs that are not possible."""
    console.print(headline(ladder.sentence, ladder.status))
    console.print(Text())
    console.print(Text(visible(_title(ladder)), style="bold"))
    console.print(rungs_table(ladder))
    for rung in ladder.rungs:
        if rung.status is not Status.PASS:
            console.print(Text(visible(f"{rung.name}: {rung.message}"), style="dim" if _informs(rung) else ""))
    for why, names in _reasons(ladder).items():
        console.print(Text(visible(f"not possible here ({why}): {', '.join(names)}"), style="dim"))
    console.print(Text())
    console.print(Text(visible(f"run {ladder.run}; d = leg - {ladder.plain}, in nats"), style="dim"))


def rungs_table(ladder: Ladder) -> Table:
    """One row for each rung; d is the leg minus what it is held against, in nats."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for at, name in enumerate(COLUMNS):
        table.add_column(name, justify="right" if 0 < at < len(COLUMNS) - 1 else "left", no_wrap=True)
    for rung in ladder.rungs:
        table.add_row(Text(visible(rung.name)), *_numbers(rung), _cell(rung.mean_d, "+.1e"), _mark(rung))
    return table


def markdown(ladder: Ladder) -> str:
    """The ladder as rows of a table in Markdown, with the legs that are not possible named below."""
    lines = [HEADER]
    for rung in ladder.rungs:
        values = " | ".join(_numbers(rung))
        lines.append(f"| `{rung.name}` | {_escaped(rung.what)} | {values} | {_word(rung)} |")
    for why, names in _reasons(ladder).items():
        legs = ", ".join(f"`{name}`" for name in names)
        lines += ["", f"Not possible here ({_escaped(why)}): {legs}."]
    return "\n".join(lines)


def _reasons(ladder: Ladder) -> dict[str, list[str]]:
    """Why legs are not possible -> their names."""
    found: dict[str, list[str]] = {}
    for leg in ladder.not_here:
        found.setdefault(leg.why, []).append(leg.name)
    return found


def _title(ladder: Ladder) -> str:
    engine = ladder.engine
    of = next((f", {rung.tokens:,} tokens of {rung.prompts} prompts" for rung in ladder.rungs if rung.tokens), "")
    return f"{engine.name}:{engine.model} in {engine.dtype} on {engine.device}{of}; limits {ladder.limits}"


def _numbers(rung: Rung) -> tuple[str, str, str]:
    share = "-" if rung.bitwise_share is None else _share(rung.bitwise_share)
    return _cell(rung.mean_abs_d), _cell(rung.max_abs_d), share


def _share(share: float) -> str:
    """100 % only where all are; a share just below it is no 100 %."""
    return f"{share:.0%}" if share in (0.0, 1.0) else f"{min(max(share, 0.001), 0.999):.1%}"


def _cell(value: float | None, form: str = "") -> str:
    if value is None:
        return "-"
    return format(value, form) if form else number(value)


def _informs(rung: Rung) -> bool:
    return rung.kind == "what if"


def _word(rung: Rung) -> str:
    said = f"{rung.status.value} ({rung.limits})" if rung.limits else rung.status.value
    return f"what if: {said}" if _informs(rung) else said


def _mark(rung: Rung) -> Text:
    return Text(_word(rung), style="dim" if _informs(rung) else STYLES[rung.status])


def _escaped(text: str) -> str:
    return visible(text).replace("|", "\\|")
