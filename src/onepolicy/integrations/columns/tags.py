"""What a row says about itself beside the columns: strings by name."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from onepolicy.dumps.fields import FieldError, shown

NONE = "{}"


def tags_text(field: str, given: Any) -> str:
    """A dict, the pairs of an Arrow map, or their JSON, as JSON of strings. Raises: FieldError for something else."""
    if given is None or given == "":
        return NONE
    if isinstance(given, str):
        return _from_json(field, given)
    if isinstance(given, list) and all(isinstance(pair, tuple) and len(pair) == 2 for pair in given):
        given = dict(given)
    if not isinstance(given, dict):
        raise FieldError(field, f"{shown(given)} stands where names and strings belong, or their JSON")
    named = {str(name): value if isinstance(value, str) else _spelled(value) for name, value in given.items()}
    return json.dumps(named, sort_keys=True, ensure_ascii=False)


@lru_cache(maxsize=4096)
def _from_json(field: str, given: str) -> str:
    try:
        found = json.loads(given)
    except (ValueError, RecursionError):
        raise FieldError(field, f"{shown(given)} is no JSON") from None
    if not isinstance(found, dict):
        raise FieldError(field, f"{shown(given)} is no JSON object")
    return tags_text(field, found)


def _spelled(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
