"""In what a part of two tokenizers differs, in lines for a person."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice, zip_longest
from typing import Any

from onepolicy.tokens.parts import (
    ADDED,
    DECODER,
    FLAGS,
    MERGES,
    NORMALIZER,
    POST_PROCESSOR,
    PRE_TOKENIZER,
    TEMPLATE,
    VOCABULARY,
)
from onepolicy.tokens.pieces import byte_alphabet
from onepolicy.visible import visible

Spell = Callable[[str], str]
"""an entry of a vocabulary -> as a person can read it"""

_EXAMPLES = 5
_LONGEST = 60
"""characters of a text that is shown"""


def describe(name: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[str]:
    """Lines that say in what a part differs; A and B name the sides. `a` and `b` are all that `parts_of` gives."""
    if name in (VOCABULARY, MERGES):
        spell = (
            _byte_level if any(step["type"] == "ByteLevel" for step in side[DECODER]) else _shown for side in (a, b)
        )
        yield from (_vocabulary if name == VOCABULARY else _merges)(a[name], b[name], *spell)
        return
    say: Callable[[Any, Any], Iterator[str]] = _DESCRIBE.get(name, _mappings)
    yield from say(a[name], b[name])


def _vocabulary(a: Sequence[Any], b: Sequence[Any], in_a: Spell, in_b: Spell) -> Iterator[str]:
    mine, other = ({piece: (i, *score) for i, piece, *score in side} for side in (a, b))
    yield f"{len(a):,} entries in A, {len(b):,} in B"
    yield from _only("A", (f"{in_a(piece)} ({mine[piece][0]})" for piece in mine if piece not in other))
    yield from _only("B", (f"{in_b(piece)} ({other[piece][0]})" for piece in other if piece not in mine))
    both = [piece for piece in mine if piece in other]
    for what, value in (("id", slice(0, 1)), ("score", slice(1, None))):
        changed = (piece for piece in both if mine[piece][value] != other[piece][value])
        yield from _counted(
            f"with another {what}",
            (f"{in_a(p)} {mine[p][value][0]} in A, {other[p][value][0]} in B" for p in changed),
        )


def _merges(a: Sequence[Any], b: Sequence[Any], in_a: Spell, in_b: Spell) -> Iterator[str]:
    mine, other = ([tuple(pair) for pair in side] for side in (a, b))
    yield f"{len(a):,} merges in A, {len(b):,} in B"
    known_a, known_b = set(mine), set(other)
    yield from _only("A", (_merge(pair, in_a) for pair in mine if pair not in known_b))
    yield from _only("B", (_merge(pair, in_b) for pair in other if pair not in known_a))
    first = next((i for i, (x, y) in enumerate(zip_longest(mine, other)) if x != y), 0)
    if first < min(len(mine), len(other)):
        pairs = f"{_merge(mine[first], in_a)} in A, {_merge(other[first], in_b)} in B"
        yield f"first difference at rank {first:,}: {pairs}"


def _merge(pair: Sequence[str], spell: Spell) -> str:
    return " + ".join(map(spell, pair))


def _added(a: Sequence[Mapping[str, Any]], b: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    mine, other = ({token["content"]: token for token in side} for side in (a, b))
    yield f"{len(a):,} in A, {len(b):,} in B"
    yield from _only("A", [f"{_shown(text)} ({mine[text]['id']})" for text in mine if text not in other])
    yield from _only("B", [f"{_shown(text)} ({other[text]['id']})" for text in other if text not in mine])
    for key in ("id", *FLAGS):
        yield from _counted(
            f"with another {key}",
            [
                f"{_shown(text)} {_value(mine[text][key])} in A, {_value(other[text][key])} in B"
                for text in mine
                if text in other and mine[text][key] != other[text][key]
            ],
        )


def _steps(a: Sequence[Any], b: Sequence[Any]) -> Iterator[str]:
    """Of a pipeline; those that only one side has, or all of them if only the order differs."""
    only_a, only_b = [x for x in a if x not in b], [x for x in b if x not in a]
    if not only_a and not only_b:
        only_a, only_b = list(a), list(b)
    for side, steps in (("A", only_a), ("B", only_b)):
        yield from (f"{'only ' if steps != list(a if side == 'A' else b) else ''}in {side}: {_step(x)}" for x in steps)
        if not (a if side == "A" else b):
            yield f"in {side}: nothing"


def _step(step: Mapping[str, Any]) -> str:
    options = (f"{name} {_option(value)}" for name, value in step.items() if name != "type" and value is not False)
    return ", ".join([str(step.get("type")), *options])


def _option(value: Any) -> str:
    """A pattern as it would be typed."""
    if isinstance(value, Mapping) and len(value) == 1:
        ((kind, content),) = value.items()
        return f"/{content}/" if kind == "Regex" else repr(content)
    return str(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _around(a: Sequence[Any], b: Sequence[Any]) -> Iterator[str]:
    for side, items in (("A", a), ("B", b)):
        shown = ("the text" if item is None else str(item) for item in items or [None])
        yield f"in {side}: {', '.join(shown)}"


def _templates(a: Mapping[str, str], b: Mapping[str, str]) -> Iterator[str]:
    yield from _only("A", [_shown(name) for name in a if name not in b])
    yield from _only("B", [_shown(name) for name in b if name not in a])
    for name in (name for name in a if name in b and a[name] != b[name]):
        lines = zip_longest(a[name].split("\n"), b[name].split("\n"))
        number, (mine, other) = next((i, pair) for i, pair in enumerate(lines, 1) if pair[0] != pair[1])
        at = _first_difference(mine or "", other or "")
        yield f"{_shown(name)}, line {number}, column {at + 1}:"
        yield from (f"in {side}: {_excerpt(line, at)}" for side, line in (("A", mine), ("B", other)))


def _first_difference(a: str, b: str) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _excerpt(line: str | None, at: int) -> str:
    return "no such line" if line is None else _shown(line[max(at - 20, 0) :])


def _mappings(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[str]:
    for name in dict.fromkeys([*a, *b]):
        if a.get(name) != b.get(name):
            yield f"{name}: {_value(a.get(name))} in A, {_value(b.get(name))} in B"


def _only(side: str, examples: Iterable[str]) -> Iterator[str]:
    return _counted(f"only in {side}", examples)


def _counted(what: str, examples: Iterable[str]) -> Iterator[str]:
    rest = iter(examples)
    first = list(islice(rest, _EXAMPLES))
    more = sum(1 for _ in rest)
    if first:
        yield f"{len(first) + more:,} {what}: {', '.join(first)}{', ...' if more else ''}"


def _value(value: Any) -> str:
    return "none" if value is None else _shown(value) if isinstance(value, str) else json.dumps(value)


def _shown(text: str) -> str:
    """Quoted, shortened, and what cannot be printed as escapes."""
    return repr(text if len(text) <= _LONGEST else text[:_LONGEST] + "...")


def _byte_level(piece: str) -> str:
    """A piece in the alphabet of bytes, as its text; bytes that form no character as escapes."""
    alphabet = byte_alphabet()
    if not all(character in alphabet for character in piece):
        return _shown(piece)
    text = bytes(alphabet[character] for character in piece[:_LONGEST]).decode(errors="backslashreplace")
    return f"'{visible(text)}{'...' if len(piece) > _LONGEST else ''}'"


_DESCRIBE: dict[str, Callable[[Any, Any], Iterator[str]]] = {
    ADDED: _added,
    NORMALIZER: _steps,
    PRE_TOKENIZER: _steps,
    POST_PROCESSOR: _around,
    DECODER: _steps,
    TEMPLATE: _templates,
}
"""part -> how its difference is said; the others are mappings"""
