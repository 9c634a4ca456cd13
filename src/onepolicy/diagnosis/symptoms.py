"""The table of symptoms: what a person sees, what it usually is, what to run; and how it is searched by words."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

from rapidfuzz import fuzz

from onepolicy.records.strict import Strict, Text
from onepolicy.records.yaml_file import mapping_in

LEGEND = (
    "RUN is a recorded run, SPEC an engine, MODEL a model's folder, DUMP what a framework recorded, BEFORE a snapshot; "
    "addresses and files of the examples are to be replaced."
)
LEAST_FOUND = 0.3
"""share of the words, by their weight, that a row must have; else it is about something else"""
LEAST_OF_BEST = 0.6
"""of the best row's score; what is further below would only be read"""
_ALIKE = 80.0
"""of 100: two words with one letter typed wrongly, and not two words such as step and stop (75)"""
_SHORTEST_TYPO = 4
"""letters; in shorter words one letter makes another word"""
_IN_CAUSE = 0.5
"""what a word counts that stands in the cause alone: people type what they see"""
_ENDINGS = ("ing", "ed", "es", "s", "e")
_SAYING_NOTHING = """
a an and are as at be been but by do does during for from has have i in into is it its model my not of on or our s so
that the their then there this to was we were when while with
"""
_NO_WORDS = frozenset(_SAYING_NOTHING.split())
_UNKNOWN = 1.0
"""weight of a word that no row has"""


class Symptom(Strict):
    """One row."""

    sees: Text
    usually: Text
    run: Text
    """a command"""
    also: Text = ""
    """other words for what is seen"""


class _Table(Strict):
    symptoms: tuple[Symptom, ...]


@cache
def symptoms() -> tuple[Symptom, ...]:
    """All rows, in the order of the table."""
    text = (files("onepolicy.diagnosis") / "symptoms.yaml").read_text(encoding="utf-8")
    return _Table.model_validate(mapping_in(text, what="a mapping with the key symptoms")).symptoms


def search(text: str, rows: Sequence[Symptom] | None = None) -> list[Symptom]:
    """The rows about these words, the best first; all rows for no word. Typing errors and endings do not matter.

    A word counts the more the fewer rows have it.
    """
    rows = symptoms() if rows is None else rows
    wanted = list(dict.fromkeys(words(text)))
    if not wanted:
        return list(rows)
    found = [[_best(word, row) for word in wanted] for row in rows]
    weights = [_weight(sum(line[i] > 0 for line in found), len(rows)) for i in range(len(wanted))]
    scores = [sum(w * value for w, value in zip(weights, line, strict=True)) for line in found]
    least = max(LEAST_OF_BEST * max(scores, default=0.0), LEAST_FOUND * sum(weights))
    kept = [(score, row) for score, row in zip(scores, rows, strict=True) if score >= least]
    return [row for _, row in sorted(kept, key=lambda pair: -pair[0])]


def words(text: str) -> list[str]:
    """The words that say something, in lower case and without their endings."""
    return [_stem(word) for word in re.findall(r"[^\W_]+", text.lower()) if word not in _NO_WORDS]


def _best(word: str, row: Symptom) -> float:
    """How well a row has a word: 0 to 1."""
    seen = max((_alike(word, other) for other in words(f"{row.sees} {row.also}")), default=0.0)
    return max(seen, _IN_CAUSE * max((_alike(word, other) for other in words(row.usually)), default=0.0))


def _alike(first: str, second: str) -> float:
    if first == second:
        return 1.0
    if min(len(first), len(second)) < _SHORTEST_TYPO:
        return 0.0
    ratio = fuzz.ratio(first, second)
    return ratio / 100.0 if ratio >= _ALIKE else 0.0


def _weight(rows_with: int, rows: int) -> float:
    """Inverse document frequency."""
    return math.log1p(rows / rows_with) if rows_with else _UNKNOWN


def _stem(word: str) -> str:
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            word = word.removesuffix(ending)
            break
    return word[:-1] if len(word) > 3 and word[-1] == word[-2] else word  # padding, padded: pad
