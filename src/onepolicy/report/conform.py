"""What a conformance run found: on a terminal, in Markdown, and one case at length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.console import Console
from rich.table import Table
from rich.text import Text

from onepolicy.errors import UsageError
from onepolicy.records.conform import Answer, Conformance, Explanation, Tried
from onepolicy.visible import visible

COLUMNS = ("role", "function", "case", "answer", "found")
STYLES = {Answer.AGREES: "green", Answer.DIFFERS: "yellow", Answer.WRONG: "red", Answer.NOT_TRIED: "dim"}


def show_conformance(found: Conformance, console: Console) -> None:
    """Print the answer, a row for each case that does not agree, and what explains them."""
    console.print(Text(headline(found), style="bold red" if found.of(Answer.WRONG) else "bold"))
    table = Table(box=None, pad_edge=False)
    for name in COLUMNS:
        table.add_column(name, overflow="fold")
    for row in _rows(found):
        table.add_row(*map(Text, map(visible, _cells(row))), style=STYLES[row[0].answer])
    console.print(Text(), table, Text(), sep="\n")
    for line in _told(found):
        console.print(Text(visible(line)))


def conformance_markdown(found: Conformance) -> str:
    """The table, and each explanation with its example."""
    lines = [headline(found), "", f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}"]
    lines += [f"| {' | '.join(map(_escaped, _cells(row)))} |" for row in _rows(found)]
    for one in _unique(found.explanations):
        lines += ["", f"### {found.subject}: {one.name}", "", one.why, "", "```python", one.example.strip(), "```"]
        lines += ["", "```", one.prints.strip(), "```"]
    return "\n".join([*lines, ""])


def show_case(found: Conformance, name: str, console: Console) -> None:
    """One case at length: what is planted, what each function did, and why. name: CASE or ROLE/CASE.

    Raises: UsageError if no case of that name was tried.
    """
    cases = [one for one in found.cases if name in (one.name, f"{one.role}/{one.name}")]
    if not cases:
        known = "; ".join(sorted({one.name for one in found.cases}))
        raise UsageError(f"no case {name!r} was tried with {found.subject}. Cases: {known}.")
    for case in cases:
        console.print(Text(f"{case.role}/{case.name}", style="bold"))
        console.print(Text(f"Planted: {case.planted}."), Text(f"Otherwise: {case.otherwise}"), sep="\n")
        for one in (one for one in found.tried if (one.role, one.case) == (case.role, case.name)):
            said = f"{one.function}: {_answer(one)}{': ' if one.found else ''}{one.found}"
            console.print(Text(visible(said), style=STYLES[one.answer]))
            explained = [why for why in found.explanations if (why.role, why.name) == (one.role, one.explanation)]
            for why in explained[:1]:
                console.print(Text(why.why))
                console.print(Text(f"\n{why.example.strip()}\n\nprints:\n{why.prints}\n"), soft_wrap=True)
        console.print(Text(_reproduction(case.role, case.name), style="dim"), soft_wrap=True)


def headline(found: Conformance) -> str:
    """The answer in a sentence, with what was counted."""
    words = {Answer.AGREES: "agree", Answer.DIFFERS: "differ by design", Answer.WRONG: "are wrong"}
    counts = [f"{len(found.of(answer))} {word}" for answer, word in words.items()]
    tried = [one for one in found.tried if one.case]
    functions = len({(one.role, one.function) for one in tried})
    start = {0: "Nothing wrong", 1: "Wrong", 3: "Nothing was tried"}[found.exit_status]
    return (
        f"{start}: {' '.join((found.subject, found.version)).strip()}, {len(tried)} cases of {functions} functions: "
        f"{', '.join(counts)}, {len([one for one in tried if one.answer is Answer.NOT_TRIED])} not tried."
    )


def _rows(found: Conformance) -> Iterator[Sequence[Tried]]:
    """The cases of a function that agree are one row; any other is a row, and so is each explanation's set of cases."""
    for _, of_function in groupby(found.tried, key=lambda one: (one.role, one.function)):
        rows: dict[tuple[Answer, str], list[Tried]] = {}
        for one in of_function:
            reason = one.explanation or (one.found if one.answer is not Answer.AGREES else "")
            rows.setdefault((one.answer, reason), []).append(one)
        yield from rows.values()


def _cells(row: Sequence[Tried]) -> tuple[str, ...]:
    first = row[0]
    return first.role, first.function, "; ".join(one.case for one in row), _answer(first), first.found


def _answer(one: Tried) -> str:
    if one.answer is Answer.DIFFERS:
        return f"differs by design: {one.explanation}"
    return f"{one.answer.value}: {one.explanation}" if one.explanation else one.answer.value


def _told(found: Conformance) -> list[str]:
    lines = [f"{one.name}: {one.why}" for one in _unique(found.explanations)]
    if found.explained and found.explained != found.version:
        lines.append(
            f"The explanations were written for {found.subject} {found.explained}, and {found.version} is installed: "
            "each still does exactly what its explanation says, or it would be wrong."
        )
    return [*lines, "More of a case, with an example: --explain CASE."]


def _unique(explanations: Sequence[Explanation]) -> list[Explanation]:
    """One of each name and text; the same is known of several functions, with an example for each."""
    return list({(one.name, one.why): one for one in reversed(explanations)}.values())[::-1]


def _reproduction(role: str, case: str) -> str:
    return (
        "To see what is observed:\n"
        "  from onepolicy.signal.conformance.cases import CASES\n"
        f"  case = next(c for c in CASES if (c.role, c.name) == ({role!r}, {case!r}))\n"
        "  print(case.observe(your_function))\n"
    )


def _escaped(cell: str) -> str:
    return visible(cell).replace("|", "\\|")
