"""A comparison of two tokenizers on a terminal, 80 columns wide or more."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from onepolicy.tokens.compare import PartComparison, TextDifference, TokenizerComparison
from onepolicy.visible import visible

_SHOWN_PIECES = 12
_LONGEST = 200
"""characters of a text that is shown"""


def show_comparison(comparison: TokenizerComparison, console: Console) -> None:
    """Print the answer, the two sides, the parts, the classes of text that differ, and the shortest such text."""
    parts: list[RenderableType] = [_headline(comparison), Text(), _sides(comparison)]
    if comparison.parts:
        parts += [Text(), _parts(comparison)]
    if any(kind.differ for kind in comparison.classes):
        parts += [Text(), _classes(comparison)]
    if comparison.shortest is not None:
        parts += [Text(), _shortest(comparison.shortest)]
    console.print(Group(*parts))


def _headline(comparison: TokenizerComparison) -> Text:
    word, _, rest = comparison.sentence.partition(":")
    return Text.assemble((f"{word}:", "bold green" if comparison.same else "bold red"), visible(rest))


def _sides(comparison: TokenizerComparison) -> Table:
    table = _table()
    sides = (("A", comparison.a, comparison.a_fingerprint), ("B", comparison.b, comparison.b_fingerprint))
    for side, origin, fingerprint in sides:
        known = "by its answers" if fingerprint is None else fingerprint.hash
        table.add_row(side, Text(known), Text(visible(origin)))
    return table


def _parts(comparison: TokenizerComparison) -> Table:
    table = _table()
    for part in comparison.parts:
        detail = "\n".join(visible(line) for line in part.detail)
        table.add_row(_mark(part), Text(part.name), Text(detail))
    return table


def _mark(part: PartComparison) -> Text:
    if part.same:
        return Text("same", style="green")
    return Text("note", style="dim") if part.informative else Text("differs", style="red")


def _classes(comparison: TokenizerComparison) -> Group:
    table = _table()
    for kind in comparison.classes:
        if kind.differ:
            table.add_row(Text(kind.name), f"{kind.differ} of {kind.probes}")
    same = sum(1 for kind in comparison.classes if not kind.differ)
    alike = Text(f"{same} other classes of text give the same ids and come back as the same text.", style="dim")
    return Group(Text("texts that differ, by class", style="bold"), table, *([alike] if same else []))


def _shortest(difference: TextDifference) -> Group:
    table = _table(narrow=1)
    rows = (
        ("A", difference.a_ids, difference.a_pieces, difference.a_text),
        ("B", difference.b_ids, difference.b_pieces, difference.b_text),
    )
    for side, ids, pieces, text in rows:
        what = _spelling(ids, pieces) if difference.kind == "ids" else f"{ids} is read as {_quoted(text)}"
        table.add_row(side, Text(what, overflow="fold"))
    added = ", with what is added at its ends" if difference.with_ends else ""
    title = Text.assemble(("shortest text found that differs: ", "bold"), _quoted(difference.text), added)
    return Group(title, Padding(table, (0, 0, 0, 2)))


def _spelling(ids: tuple[int, ...] | None, pieces: tuple[str, ...]) -> str:
    """Each piece with its id."""
    if ids is None:
        return "refuses it"
    shown = [f"{_quoted(piece)} {i}" for i, piece in zip(ids[:_SHOWN_PIECES], pieces[:_SHOWN_PIECES], strict=True)]
    more = [f"... {len(ids) - _SHOWN_PIECES} more"] if len(ids) > _SHOWN_PIECES else []
    return "  ".join([*shown, *more]) or "nothing"


def _quoted(text: str) -> str:
    short = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
    return f"'{visible(short)}'"


def _table(*, narrow: int = 2) -> Table:
    """Columns that keep their width, then one that folds."""
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    for _ in range(narrow):
        table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    return table
