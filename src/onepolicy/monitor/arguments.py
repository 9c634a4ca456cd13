"""What a trainer says beside its tensors, checked."""

from __future__ import annotations

import os
from collections.abc import Mapping
from numbers import Integral
from pathlib import Path

from onepolicy.errors import UsageError

_LARGEST = 2**62


def path_of(run: object) -> Path:
    """The folder. Raises: UsageError for what is no path."""
    try:
        path = Path(run)  # type: ignore[arg-type]
        os.fsencode(path)
    except (TypeError, UnicodeEncodeError) as error:
        raise UsageError(f"{str(run)[:80]!r} is no path; give the monitor a folder of its own.") from error
    if "\0" in str(path) or not str(run):
        raise UsageError(f"{str(path)[:80]!r} is no path; give the monitor a folder of its own.")
    return path


def about_of(about: object) -> dict[str, str]:
    """Names and what they are now, as text. Raises: UsageError for what is no mapping, or no text."""
    if about is None:
        return {}
    if not isinstance(about, Mapping):
        raise UsageError(f"`about` is a {type(about).__name__}; give names and values: {{'rollout_engine': 'vllm 1'}}.")
    words = {str(name): str(value) for name, value in about.items()}
    try:
        "".join([*words, *words.values()]).encode()
    except UnicodeEncodeError as error:
        raise UsageError("`about` holds text that is no Unicode (a lone surrogate); give it decoded.") from error
    return words


def number_of(number: object) -> int:
    """A step's number. Raises: UsageError for what is none."""
    if not isinstance(number, bool) and isinstance(number, Integral) and -_LARGEST < int(number) < _LARGEST:
        return int(number)
    raise UsageError(f"a step's number is {str(number)[:40]!r}; give a whole number.")
