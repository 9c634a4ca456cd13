"""What a self-test found: on a terminal, and as a page of the docs."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table
from rich.text import Text

from onepolicy.diagnosis.decide import MOST_RESIDUAL
from onepolicy.records.selftest import Control, Planted, SelfTest, Size

COLUMNS = ("fault", "size", "planted as", "by", "x noise", "detected", "first cause", "explained", "s")
HEAD = """# Self-test of the diagnosis

<!-- written by `{command} --markdown`; do not edit -->

Every fault is planted in a real pair of engines at three sizes, and diagnosed as any other run.

```console
$ {command}
```

* **planted as**: the parameter. That of the smaller sizes is searched for, until the pair is about 3 times as far
  apart as its precisions make it, and less than once: half in float32; 0.9 in float16, which alone are 0.85.
* **by**: `engine`, the engine itself does it (an option, its sampling, other weights); `function`, a scoring function
  around a sound model has it in its code; `columns`, what the engines gave is changed in the recorded columns, as no
  engine does that.
* **x noise**: mean |d| (cut at 1 nat) over that of the noise, measured on the planted run.
* **explained**: share of the excess over the noise that the first cause removes on prompts it was not fitted on. Above
  100 % where the pair is quieter than the noise of its precisions; empty where the data prove the cause by themselves.
* **right** is a cause that stands first, or among those that the diagnosis says it cannot tell apart. Below the noise,
  naming nothing is right as well, and so is it for the prefix cache of a function, which nobody can read without it.
"""
HONEST = """As `rollout | trainer`. An alarm is a fault that is named, or a difference without a cause. That two sides
compute in two precisions may be said where they do."""


def show_selftest(found: SelfTest, console: Console) -> None:
    """Print the table, what went wrong, and the summary."""
    table = Table(box=None, pad_edge=False)
    for name in COLUMNS:
        table.add_column(name, justify="right" if name in ("x noise", "explained", "s") else "left", overflow="fold")
    for one in found.planted:
        table.add_row(*map(Text, _cells(one)), style="" if _is_fine(one) else "red")
    if found.planted:
        console.print(table)
        console.print()
    for control in found.alarms:
        console.print(Text(f"alarm: {control.pair}: {control.said}", style="red"))
    for line in summary(found):
        console.print(Text(line))


def selftest_page(found: SelfTest, *, not_planted: Mapping[str, str]) -> str:
    """The whole as Markdown. not_planted: fault -> why it has no row."""
    command = "onepolicy selftest" + ("" if found.model == "tiny" else f" --model {found.model}")
    lines = [
        HEAD.replace("{command}", command),
        *(f"* {line}" for line in summary(found)),
        "",
        f"## Faults, model `{found.model}`",
        "",
    ]
    lines += [f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}"]
    lines += [f"| {' | '.join(_escaped(cell) for cell in _cells(one))} |" for one in found.planted]
    lines += ["", "## Not right", "", *(_bad(found) or ["Nothing."])]
    lines += ["", "## Not planted", "", *(f"* {name}: {why}." for name, why in not_planted.items())]
    lines += ["", "## Honest pairs", "", HONEST, ""]
    lines += ["| pair | x noise | said | alarm | s |", "|---|---|---|---|---|"]
    lines += [f"| {' | '.join(_escaped(cell) for cell in _control(one))} |" for one in found.controls]
    return "\n".join([*lines, ""])


def summary(found: SelfTest) -> list[str]:
    """What counts, in lines."""
    lines = []
    if found.to_detect:
        total, (low, high) = len(found.to_detect), found.interval_right
        right = total - len(found.wrong)
        lines.append(
            f"Above the noise: {total - len(found.missed)} of {total} detected; missed: {_names(found.missed)}."
        )
        lines.append(
            f"Right cause first, or among those that cannot be told apart: {right} of {total} "
            f"({found.share_right:.1%}, 95 % interval {low:.1%} to {high:.1%}); wrong: {_names(found.wrong)}."
        )
        below = sum(one.size is Size.BELOW for one in found.planted)
        lines.append(
            f"Below the noise: a wrong cause named in {len(found.wrong_below)} of {below}: {_names(found.wrong_below)}."
        )
    if found.controls:
        louder = sum(one.first == "precision" and one.multiple > MOST_RESIDUAL for one in found.controls)
        lines.append(
            f"Honest pairs: {len(found.alarms)} alarms in {len(found.controls)}; {louder} are further apart than their "
            "precisions usually are, and the diagnosis says that it is the precision."
        )
    lines.append(
        f"{'Passed' if found.passed else 'Failed'} in {found.seconds:.0f} s, onepolicy {found.version}, {found.model}."
    )
    return lines


def _cells(one: Planted) -> tuple[str, ...]:
    first = one.first or "none"
    if one.outcome is not None and one.outcome.value != "cause":
        first = f"{one.outcome.value}: {', '.join(one.among or (one.first,))}"
    explained = "" if one.explained is None else f"{one.explained:.0%}"
    return (
        one.fault,
        one.size.value,
        one.parameter,
        one.way.value,
        f"{one.multiple:.2g}" if one.multiple < 100 else f"{one.multiple:.0f}",
        "yes" if one.detected else "no",
        first if one.is_right else f"{first} (wrong)",
        explained,
        f"{one.seconds:.1f}",
    )


def _control(one: Control) -> tuple[str, ...]:
    return one.pair, f"{one.multiple:.2f}", one.first or "nothing", "yes" if one.alarmed else "no", f"{one.seconds:.1f}"


def _is_fine(one: Planted) -> bool:
    return one.passes and one.is_right


def _names(rows: tuple[Planted, ...]) -> str:
    return "; ".join(f"{one.fault} ({one.size.value})" for one in rows) or "none"


def _bad(found: SelfTest) -> list[str]:
    planted = [
        f"* {one.fault}, {one.size.value}: should be {' or '.join(one.right) or 'no cause'}. Said: {_told(one.said)}"
        for one in found.planted
        if not _is_fine(one)
    ]
    return planted + [f"* {one.pair} (honest). Said: {_told(one.said)}" for one in found.alarms]


def _told(sentence: str) -> str:
    """A sentence without the command that it ends in: that names folders that are gone."""
    for word in (" Run: ", " Next: "):
        sentence = sentence.partition(word)[0]
    return sentence


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|")
