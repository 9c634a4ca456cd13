"""The objects of JSON and JSONL, one after the other: near the speed of orjson, in memory for one line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import orjson

from onepolicy.dumps.source import Readable, chunks
from onepolicy.errors import DumpError

MAX_LINE = 1 << 30
"""bytes of one line, or of a JSON file that is no JSONL: as long as one line with a whole training step of 10 million
tokens and 10 numbers for each; its objects take up to ten times as much memory"""
LONG_LINE = 1 << 24
"""bytes from which on a line's lists and objects are counted before they are made"""
MAX_CONTAINERS = 10_000_000
"""lists and objects of one line; each takes 56 to 200 bytes for the two it has in the file"""
CHUNK = 1 << 18
"""bytes read at once: the cache of a core holds them until their objects are made"""
BOM = b"\xef\xbb\xbf"
Numbered = tuple[int, str, dict[str, Any]]
"""number of the line or entry from 0 on, the same as a message says it, what stands there"""


def lines(stream: Readable, name: str, *, before: int = 0) -> Iterator[tuple[int, bytes]]:
    """(number from 1, line without its end). Raises: DumpError for a line beyond the limit.

    before: lines of the file that the stream does not hold; where there are some, it does not begin with a BOM.
    """
    carry: list[bytes] = []
    held, number = 0, before
    chunk = stream.read(CHUNK)
    chunk = chunk if before else chunk.removeprefix(BOM)
    while chunk:
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:  # several times as fast as to split, where lines are long
            number += 1
            line, start = chunk[start:end], end + 1
            if carry:
                line = b"".join((*carry, line))
                carry, held = [], 0
            yield number, line
        carry.append(chunk[start:])
        held += len(carry[-1])
        if held > MAX_LINE:
            raise _too_long(f"{name}, line {number + 1}")
        chunk = stream.read(CHUNK)
    if held:
        yield number + 1, b"".join(carry)


def line_objects(stream: Readable, name: str, *, before: int = 0) -> Iterator[Numbered]:
    """(2, "FILE, line 3", object) of JSONL; empty lines hold nothing. Raises: DumpError for any other line.

    before: lines of the file that the stream does not hold.
    """
    for number, line in lines(stream, name, before=before):
        if not line or line.isspace():
            continue
        where = f"{name}, line {number}"
        yield number - 1, where, _an_object(parsed(line, where), where)


def file_objects(stream: Readable, name: str) -> Iterator[Numbered]:
    """The one object of a JSON file, or (2, "FILE, entry 3", object) for those of its array. Raises: DumpError."""
    found = parsed(b"".join(chunks(stream, MAX_LINE, name)).removeprefix(BOM), name)
    if type(found) is not list:
        yield 0, name, _an_object(found, name)
        return
    for number, entry in enumerate(found, 1):
        where = f"{name}, entry {number}"
        yield number - 1, where, _an_object(entry, where)


def parsed(text: bytes, where: str) -> Any:
    """A JSON value. NaN and Infinity, which frameworks write and JSON does not have, are read by the slower parser.

    Raises: DumpError if it is no JSON, or nested deeper than either parser goes (about 1000 levels).
    """
    if len(text) > LONG_LINE:
        _check_containers(text, where)
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        if b"NaN" not in text and b"Infinity" not in text:
            raise _no_json(where, text, error) from error
    try:
        found = json.loads(text.decode("utf-8"))
        if b"\\ud" in text.lower():
            orjson.dumps(found)  # half of a character, which this parser takes and nothing can write
    except (ValueError, TypeError, RecursionError) as error:
        raise _no_json(where, text, error) from error
    return found


def _check_containers(text: bytes, where: str) -> None:
    count = text.count(b"{") + text.count(b"[")
    if count > MAX_CONTAINERS:
        raise DumpError(
            f"{where}: has {count} lists and objects, more than {MAX_CONTAINERS}. Write one line for each rollout."
        )


def _an_object(found: Any, where: str) -> dict[str, Any]:
    if type(found) is not dict:
        raise DumpError(
            f"{where}: holds {_KINDS.get(type(found), 'a number')}, and a recorded rollout is an object {{...}}."
        )
    return found


_KINDS = {list: "a list", str: "a string", bool: "true or false", type(None): "null"}


def _no_json(where: str, text: bytes, error: Exception) -> DumpError:
    if isinstance(error, RecursionError) or any(word in str(error).lower() for word in ("recursion", "depth limit")):
        return DumpError(f"{where}: is nested too deep for JSON that a framework records.")
    end = (
        " It ends in the middle; was the file still being written?" if not text.rstrip().endswith((b"}", b"]")) else ""
    )
    return DumpError(f"{where}: is not JSON ({error}).{end}")


def _too_long(where: str) -> DumpError:
    return DumpError(f"{where}: is longer than {MAX_LINE >> 30} GiB. Write one line for each rollout.")
