"""What a bisection found, on a terminal, 80 columns wide or more."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from onepolicy.records.bisection import Bisection, Cause, Tested, named
from onepolicy.records.verdict import Status
from onepolicy.report.console import STYLES
from onepolicy.visible import visible

_SAID = 240
"""characters of a test's sentence"""


def show_bisection(found: Bisection, console: Console) -> None:
    """Print the answer, each cause with both its settings, what is unknown or flaky, and all tests."""
    word, _, rest = visible(found.sentence, keep="\n").partition(":")
    style = "green" if found.status is Status.PASS else STYLES[found.status]
    parts: list[RenderableType] = [Text.assemble((f"{word}:", f"bold {style}"), rest)]
    for cause in found.causes:
        parts += [Text(), cause_table(cause), *_doubts(cause)]
    parts += [Text(), tests_table(found)]
    parts += [Text(visible(line), style="yellow") for line in notes(found)]
    parts += [Text(), Text(f"{found.starts} starts; logs and runs in {visible(found.folder)}", style="dim")]
    console.print(Group(*parts))


def cause_table(cause: Cause) -> Table:
    """One row for each switch: as it is when the check passes, and when it fails."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("switch", "good", "bad"):
        table.add_column(name, overflow="fold")
    for switch in cause.switches:
        table.add_row(*(Text(visible(text)) for text in (switch.name, switch.good, switch.bad)))
    return table


def tests_table(found: Bisection) -> Table:
    """One row for each choice of switches, in the order of the starts."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("as in bad", overflow="fold", ratio=2)
    table.add_column("outcome", no_wrap=True)
    table.add_column("s", justify="right", no_wrap=True)
    table.add_column("what was said", overflow="fold", ratio=3)
    for test in found.tests:
        seconds = sum(attempt.seconds for attempt in test.attempts)
        said = visible(test.attempts[-1].sentence, keep="\n")
        said = said if len(said) <= _SAID else f"{said[:_SAID]}…"
        table.add_row(Text(visible(_set(found, test))), _outcome(test), f"{seconds:.0f}", Text(said))
    return table


def notes(found: Bisection) -> list[str]:
    """What could not be told."""
    lines = [f"flaky: {named(test.switches)}: one start passed and another failed." for test in found.flaky]
    unknown = len(found.unknown)
    if unknown:
        lines.append(f"{unknown} of {len(found.tests)} choices have no outcome; they count as not failing.")
    return lines


def _doubts(cause: Cause) -> list[Text]:
    if not cause.unsure:
        return []
    return [
        Text(visible(f"without {named(cause.unsure)} the outcome is unknown, so it may not be needed"), style="yellow")
    ]


def _set(found: Bisection, test: Tested) -> str:
    if not test.switches:
        return "nothing (good)"
    return "everything (bad)" if len(test.switches) == len(found.switches) else ", ".join(test.switches)


def _outcome(test: Tested) -> Text:
    word = "flaky" if test.is_flaky else test.status.value
    twice = f" x{len(test.attempts)}" if len(test.attempts) > 1 else ""
    return Text(word + twice, style=STYLES[test.status])
