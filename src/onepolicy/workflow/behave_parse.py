"""Whether a completion is of the wanted format: by a regular expression, or by a stranger's function."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence

from onepolicy.errors import UsageError

Parse = str | Callable[[str], bool]
"""a regular expression to find in the text of a completion, or a function that says whether it is well-formed"""
SECONDS = 60.0
"""for all texts; ten thousand of them take less than one"""
_SEARCH = """
import json, re, sys
pattern = re.compile(json.loads(sys.stdin.readline()))
for line in sys.stdin:
    print(int(pattern.search(json.loads(line)) is not None), flush=True)
"""
"""a search cannot be ended in this process: with nested repetitions it may go on for years"""


def refuse_no_pattern(parse: Parse | None) -> None:
    """Raises: UsageError if a regular expression is none."""
    if not isinstance(parse, str):
        return
    try:
        re.compile(parse)
    except (re.error, RecursionError, OverflowError) as error:
        raise UsageError(f"--parse {parse!r} is no regular expression: {error}.") from error


def parser(parse: Parse, texts: Sequence[str]) -> Callable[[str], bool]:
    """Says of each of these texts whether it parses. Raises: UsageError if a search does not end."""
    if not isinstance(parse, str):
        return _guarded(parse)
    return dict(zip(texts, searched(parse, texts), strict=True)).__getitem__


def searched(pattern: str, texts: Sequence[str], *, seconds: float = SECONDS) -> list[bool]:
    """Whether each text holds a match, found out in a process that is ended if it takes too long.

    Raises: UsageError then, which says at which text.
    """
    lines = "".join(f"{json.dumps(text)}\n" for text in (pattern, *texts))
    command = [sys.executable, "-I", "-S", "-c", _SEARCH]
    try:
        done = subprocess.run(  # noqa: S603 - this interpreter; the pattern goes in as data
            command, input=lines, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired as error:
        at = min(len((error.stdout or b"").splitlines()), len(texts) - 1)
        raise UsageError(
            f"--parse {pattern!r}: the search did not end within {seconds:g} s; it stayed at text {at + 1} of "
            f"{len(texts)}, of {len(texts[at])} characters. Repetitions inside of repetitions, such as (a+)+, try "
            "every way to divide a text: write it without, or give a function with --parse-with."
        ) from error
    if done.returncode:
        raise UsageError(f"--parse {pattern!r}: the search failed: {done.stderr.strip().splitlines()[-1:]}")
    return [line == "1" for line in done.stdout.splitlines()]


def _guarded(parse: Callable[[str], bool]) -> Callable[[str], bool]:
    def holds(text: str) -> bool:
        try:
            return bool(parse(text))
        except Exception as error:  # whatever a stranger's code raises is theirs to mend
            raise UsageError(
                f"the function that parses failed on a text of {len(text)} characters: {error!r}"
            ) from error

    return holds
