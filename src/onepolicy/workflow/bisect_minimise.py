"""Delta debugging: a set of switches that fails, and of which none can be left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from onepolicy.records.verdict import Status

Names = tuple[str, ...]
Ask = Callable[[Names], Status]
"""the outcome with these switches bad and all others good; asked as often as one likes, so it remembers"""


def minimise(names: Names, ask: Ask) -> Names:
    """A subset that fails, made smaller until leaving out any one switch does not fail any more.

    `names` fails, and no switch passes. An unknown outcome counts as one that does not fail, so it can keep a switch in
    and never take one out. At most n^2 + 3n questions for n switches, about 2 log2(n) for a single culprit.
    Source: A. Zeller and R. Hildebrandt, "Simplifying and Isolating Failure-Inducing Input" (2002), ddmin.
    """
    parts = 2
    while len(names) > 1:
        smaller = _failing(names, parts, ask)
        if smaller is not None:
            names, parts = smaller, 2 if 2 * len(smaller) <= len(names) else max(parts - 1, 2)
        elif parts < len(names):
            parts = 2 * parts
        else:
            break
        parts = min(parts, len(names))
    return names


def unsure(names: Names, ask: Ask) -> Names:
    """Switches without which the outcome is unknown: whether they belong to the set is not known."""
    if len(names) == 1:
        return ()
    return tuple(name for name in names if ask(without(names, (name,))) is Status.UNKNOWN)


def without(names: Names, some: Names) -> Names:
    """The others, in the same order."""
    return tuple(name for name in names if name not in some)


def _failing(names: Names, parts: int, ask: Ask) -> Names | None:
    """The first of the parts that fails by itself, then the first of their complements."""
    chunks = split(names, parts)
    for chunk in chunks:
        if ask(chunk) is Status.FAIL:
            return chunk
    if parts == 2:
        return None  # each is the other's complement
    return next((rest for chunk in chunks if ask(rest := without(names, chunk)) is Status.FAIL), None)


def split(names: Sequence[str], parts: int) -> list[Names]:
    """As many parts, as equal as they can be, in order."""
    edges = [len(names) * i // parts for i in range(parts + 1)]
    return [tuple(names[start:end]) for start, end in pairwise(edges)]
