"""The same JSON value in two texts, and in what its writing differs."""

from __future__ import annotations

import json
import re

_MOST_TRIED = 64
"""opening braces before the difference"""
_OUTSIDE_STRINGS = re.compile(r'("(?:[^"\\]|\\.)*")|\s+')


def json_difference(a: str, b: str, *, at: int) -> str | None:
    """order of keys, spacing or escapes, if an object around the first differing character is one value in both texts.

    at: the first differing character.
    """
    for brace in _braces_before(a, at):
        left, right = _object_at(a, brace), _object_at(b, brace)
        if left is not None and right is not None and left[1] > at and left[0] == right[0]:
            return _style(a[brace : left[1]], b[brace : right[1]])
    return None


def _braces_before(text: str, at: int) -> list[int]:
    """The last opening braces before the difference, outermost first."""
    found: list[int] = []
    brace = text.rfind("{", 0, at)
    while brace >= 0 and len(found) < _MOST_TRIED:
        found.append(brace)
        brace = text.rfind("{", 0, brace)
    return found[::-1]


def _object_at(text: str, at: int) -> tuple[object, int] | None:
    try:
        return json.JSONDecoder().raw_decode(text, at)
    except (ValueError, RecursionError):
        return None


def _style(a: str, b: str) -> str:
    if json.dumps(json.loads(a)) != json.dumps(json.loads(b)):
        return "order of keys"
    return "spacing" if _squeezed(a) == _squeezed(b) else "escapes"


def _squeezed(text: str) -> str:
    return _OUTSIDE_STRINGS.sub(lambda found: found[1] or "", text)
