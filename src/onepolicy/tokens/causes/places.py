"""The same ids, cut off or further on."""

from __future__ import annotations

from onepolicy.tokens.sides import ENOUGH, Compared, common_prefix

_LARGEST_SHIFT = 8


def cut(c: Compared) -> str | None:
    """One side is the beginning or the end of the other."""
    shorter = int(len(c.ids[1]) < len(c.ids[0]))
    long, short = c.ids[1 - shorter], c.ids[shorter]
    missing = len(long) - len(short)
    if not short or not missing:
        return None
    if c.at == len(short):
        return f"the {c.names[shorter]} ids lack the last {missing} of {len(long)}"
    begins_anew = c.at > 0 and c.is_special(shorter, short[0])  # with a message: a whole one is absent before it
    if long[missing:] == short and not begins_anew:
        return f"the {c.names[shorter]} ids lack the first {missing} of {len(long)}"
    return None


def shifted_ids(c: Compared) -> str | None:
    """The same ids, a few places further on."""
    for lag in range(1, _LARGEST_SHIFT + 1):
        for late in (0, 1):
            ids = c.ids[late][c.at + lag :]
            together = common_prefix(c.ids[1 - late][c.at :], ids)
            if together >= max(ENOUGH, lag + 1):
                return f"from there on the {c.names[late]} ids stand {lag} places later"
    return None
