"""Command line flags of a server, as a mapping of names to values."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from onepolicy.errors import UsageError
from onepolicy.records.json_text import number_in
from onepolicy.sampling.spellings import mapping_of

_FLAG = re.compile(r"-{1,2}[A-Za-z][\w.-]*(=.*)?", re.DOTALL)
_OTHER_DASH = re.compile("[\u2010-\u2015\u2212\ufe58\ufe63\uff0d\u200b\ufeff]")
"""what a word processor makes of a dash, and what stands unseen before one"""
_PROGRAM = re.compile(r"(.*/)?(vllm|sglang|llama-server|llama-cli|python[\d.]*|serve)")


def flags_of(source: Any, *, what: str, aliases: Mapping[str, str]) -> dict[str, Any]:
    """The flags in a list of arguments, or in a mapping, under their long names with underscores.

    A flag without a value is True, `--no-x` is x = False, one that stands twice counts as the last, numbers and JSON
    are read, and words that follow no flag are left out, as they are no settings. aliases: short names -> long ones.
    Raises: UsageError if `source` is neither, or is a list of words that are no command line.
    """
    if isinstance(source, str):
        raise UsageError(f"{what} is the text {source!r}. Give the arguments as a list, one for each word.")
    if isinstance(source, list | tuple):
        found = _in_list(source)
        _refuse_no_command([str(word) for word in source], found, what)
    else:
        found = list(mapping_of(source, what=what).items())
    flags: dict[str, Any] = {}
    for name, value in found:
        _put(flags, _long(name, aliases), value)
    return flags


def _in_list(arguments: Sequence[Any]) -> list[tuple[str, Any]]:
    words = [str(word) for word in arguments]
    found: list[tuple[str, Any]] = []
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if not _FLAG.fullmatch(word):
            continue
        name, equals, text = word.partition("=")
        if equals:
            found.append((name, plain(text)))
        elif at < len(words) and not _FLAG.fullmatch(words[at]):
            found.append((name, plain(words[at])))
            at += 1
        else:
            found.append((name, True))
    return found


def _refuse_no_command(words: Sequence[str], flags: Sequence[tuple[str, Any]], what: str) -> None:
    """A setting that is not seen as one would be left out, and its default taken for what is used."""
    odd = next((word for word in words if _OTHER_DASH.match(word)), None)
    if odd is not None:
        raise UsageError(
            f"{what}: {odd!r} begins with {odd[0]!a}, which is not the - of a flag. Type the dash anew; a value that "
            "begins so stands after an =."
        )
    if words and not flags and not any(_PROGRAM.fullmatch(word) for word in words):
        raise UsageError(
            f"{what}: there is neither a flag (--name) nor a server's program in {' '.join(words)[:80]!r}. Give a "
            "command line; JSON ends with .json, YAML with .yaml."
        )


def _long(name: str, aliases: Mapping[str, str]) -> str:
    bare, dot, inner = name.lstrip("-").partition(".")
    bare = bare.replace("-", "_")
    return aliases.get(bare, bare) + dot + inner


def _put(flags: dict[str, Any], name: str, value: Any) -> None:
    """`a.b` is the key b of the mapping a, `no_x` with nothing after it is x = False."""
    outer, dot, inner = name.partition(".")
    if dot:
        held = flags.get(outer)
        flags[outer] = {**(held if isinstance(held, Mapping) else {}), inner: value}
    elif value is True and name.startswith("no_"):
        flags[name.removeprefix("no_")] = False
    else:
        flags[name] = value


def plain(text: str) -> Any:
    """The value that a word on a command line stands for: a number, true, false, JSON, or the word."""
    if text[:1] in ("{", "["):
        try:
            return json.loads(text, parse_float=number_in)
        except (ValueError, RecursionError):
            return text
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, number_in):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def written_flags(values: Mapping[str, Any]) -> list[str]:
    """Names with underscores and values -> arguments; True is a flag alone, None and False are left out."""
    words: list[str] = []
    for name, value in values.items():
        if value is None or value is False:
            continue
        words.append("--" + name.replace("_", "-"))
        words += [] if value is True else [value if isinstance(value, str) else json.dumps(value)]
    return words
