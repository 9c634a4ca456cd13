"""The front and the end of a sequence: tokens that begin or end it, once too often or not at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from onepolicy.tokens.sides import ENOUGH, Compared, common_prefix


def bos_doubled(c: Compared) -> str | None:
    """One side begins with more than one BOS, the other with fewer."""
    counts = _leading_bos(c)
    if c.start or counts[0] == counts[1] or max(counts) < 2:
        return None
    more = int(counts[1] > counts[0])
    spelled = c.spelled(more, c.ids[more][0])
    return (
        f"the {c.names[more]} ids begin with {max(counts)} x {spelled}, the {c.names[1 - more]} ids with {min(counts)}"
    )


def bos_missing(c: Compared) -> str | None:
    """Only one side begins with BOS."""
    counts = _leading_bos(c)
    if c.start or sorted(counts) != [0, 1]:
        return None
    more = int(counts[1] > counts[0])
    return f"only the {c.names[more]} ids begin with {c.spelled(more, c.ids[more][0])}"


def bos_inside(c: Compared) -> str | None:
    """One side has a BOS where a segment begins, inside the sequence."""
    more = _side_with(c, lambda side: _boundary(c, side, "bos"))
    if more is None or c.start + c.at == 0:
        return None
    return f"the {c.names[more]} ids have {c.spelled(more, c.ids[more][c.at])} inside the sequence"


def eos_doubled(c: Compared) -> str | None:
    """One side has one end token more than the other, after another one."""
    more = _side_with(c, lambda side: _boundary(c, side, "eos"))
    if more is None or not c.at or c.ids[more][c.at - 1] not in _boundary(c, more, "eos") or not _once_more(c, more):
        return None
    return f"the {c.names[more]} ids have {c.spelled(more, c.ids[more][c.at])} once more"


def eos_missing(c: Compared) -> str | None:
    """Only one side has the end token."""
    more = _side_with(c, lambda side: _boundary(c, side, "eos"))
    if more is None or not _once_more(c, more):
        return None
    return f"only the {c.names[more]} ids have {c.spelled(more, c.ids[more][c.at])} there"


def _boundary(c: Compared, side: int, which: str) -> frozenset[int]:
    reader = c.readers[side]
    if reader is None:
        return frozenset()
    return reader.boundaries.bos if which == "bos" else reader.boundaries.eos


def _leading_bos(c: Compared) -> tuple[int, int]:
    a, b = (_leading(c.ids[side], _boundary(c, side, "bos")) for side in (0, 1))
    return a, b


def _leading(ids: Sequence[int], wanted: frozenset[int]) -> int:
    return next((n for n, i in enumerate(ids) if i not in wanted), len(ids))


def _side_with(c: Compared, wanted: Callable[[int], frozenset[int]]) -> int | None:
    """The side that has one of the wanted ids at the difference, if the other has none there."""
    has = [c.at < len(c.ids[side]) and c.ids[side][c.at] in wanted(side) for side in (0, 1)]
    return None if has[0] == has[1] else int(has[1])


def _once_more(c: Compared, more: int) -> bool:
    """Whether leaving out that one id brings both sides together, as far as the next few ids."""
    rest, other = c.ids[more][c.at + 1 :], c.ids[1 - more][c.at :]
    together = common_prefix(rest, other)
    return together == len(rest) == len(other) or together >= ENOUGH
