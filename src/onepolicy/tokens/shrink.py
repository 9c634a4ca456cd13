"""The shortest text for which something holds, found by leaving characters out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Test = Callable[[Sequence[str]], Sequence[bool]]
"""texts -> for each, whether it still shows what is looked for"""
LONGEST_EXCERPT = 4
"""characters of the excerpts that are all tried"""
LONGEST_SHRUNK = 400
"""characters of a text that is shrunk, if there is a shorter one; each one left out is another text to try"""
MOST_SHRUNK = 40
"""texts that are shrunk, the shortest first"""


def shortest(texts: Sequence[str], shows: Test) -> str | None:
    """The shortest text found that shows it; None without `texts`, which show it themselves.

    All excerpts of up to `LONGEST_EXCERPT` characters are tried, the shortest first; those that show it, or else the
    texts, are shrunk. Of equal lengths the one that can be printed, with fewer bytes, first by character.
    """
    found = _excerpts(texts, shows) or [text for text in texts if len(text) <= LONGEST_SHRUNK] or list(texts[:1])
    return min((shrunk(text, shows) for text in sorted(found, key=_rank)[:MOST_SHRUNK]), key=_rank, default=None)


def _excerpts(texts: Sequence[str], shows: Test) -> list[str]:
    """All of the least length at which one shows it."""
    for length in range(1, LONGEST_EXCERPT + 1):
        excerpts = sorted({text[i : i + length] for text in texts for i in range(len(text) - length + 1)})
        found = [text for text, hit in zip(excerpts, shows(excerpts), strict=True) if hit]
        if found:
            return found
    return []


def shrunk(text: str, shows: Test) -> str:
    """`text` with as many characters left out as can be; leaving out any one more would not show it.

    Source: A. Zeller, R. Hildebrandt, "Simplifying and isolating failure-inducing input" (2002).
    """
    size = max(len(text) // 2, 1)
    while True:
        without = [text[:i] + text[i + size :] for i in range(0, len(text), size)]
        hit = next((shorter for shorter, hit in zip(without, shows(without), strict=True) if hit and shorter), None)
        if hit is not None:
            text, size = hit, min(size, max(len(hit) // 2, 1))
        elif size == 1:
            return text
        else:
            size = max(size // 2, 1)


def _rank(text: str) -> tuple[int, bool, int, str]:
    return len(text), not text.isprintable(), len(text.encode()), text
