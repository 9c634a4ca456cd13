"""JSON that a person wrote -> what it holds, or an error that says what is wrong. Nothing is dropped silently."""

from __future__ import annotations

import json
from typing import Any

from onepolicy.errors import UsageError


def json_in(text: str) -> Any:
    """What a JSON text holds.

    Raises: UsageError that does not name the file, if it is none, has a key twice, of which JSON would drop one, or a
    number that is too small to be held.
    """
    try:
        return json.loads(text, object_pairs_hook=_once_each, parse_float=number_in)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"is no JSON ({error}).") from error


def number_in(text: str) -> float:
    """The number that a decimal text is. Raises: UsageError if it would become 0, which it is not."""
    found = float(text)
    if found == 0.0 and set("123456789").intersection(text.lower().partition("e")[0]):
        raise UsageError(f"the number {text} is too small to be held, and would be read as 0. Write 0 to mean that.")
    return found


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise UsageError(f"the key {name!r} stands twice in one object, and only one of them would count.")
        found[name] = value
    return found
