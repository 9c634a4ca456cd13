"""Text of models and files, made safe to print."""

from __future__ import annotations


def visible(text: str, *, keep: str = "") -> str:
    """The text with control characters as escapes, so that it cannot move the cursor; those in `keep` stay."""
    return "".join(c if c.isprintable() or c in keep else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
