"""Short texts by the class of their characters, on which tokenizers differ if they differ at all."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

PROBES = "probes.v1.jsonl"
"""a released file is never edited; a change is a new version"""
ENDS = "beginning and end"
"""the class whose probes are encoded with what the tokenizer adds to a text; the others are encoded without"""
_SPECIAL = "{special}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A text to encode."""

    kind: str
    """class of characters or place"""
    text: str


def probes(special: Iterable[str]) -> Iterator[Probe]:
    """All of them; those with a special token once for each of `special`."""
    for probe in _stored():
        if _SPECIAL not in probe.text:
            yield probe
            continue
        for token in special:
            yield Probe(kind=probe.kind, text=probe.text.replace(_SPECIAL, token))


@cache
def _stored() -> tuple[Probe, ...]:
    lines = (files("onepolicy.tokens") / "data" / PROBES).read_text(encoding="utf-8").split("\n")
    return tuple(Probe(kind=item["class"], text=item["text"]) for item in map(json.loads, filter(None, lines)))
