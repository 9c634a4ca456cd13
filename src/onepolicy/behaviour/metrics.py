"""What one completion is like, as a number. A function for each metric; none of them knows of the other side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from onepolicy.behaviour.completions import Observed

NGRAM = 4
"""tokens of an n-gram whose repetition counts"""
STOP = "stop"
"""the finish reason of a completion that ended by itself; its rate is what the others leave"""

Kind = Literal["length", "rate", "repetition", "similarity", "content"]
"""which threshold holds for it"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A number for each completion."""

    name: str
    kind: Kind
    unit: str
    of: Callable[[Observed], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What to look for in the text."""

    keywords: tuple[str, ...] = ()
    parses: Callable[[str], bool] | None = None
    """whether a completion is of the wanted format"""

    @property
    def needs_text(self) -> bool:
        """Whether a metric was asked for that reads the text."""
        return bool(self.keywords) or self.parses is not None


def length(token_ids: Sequence[int]) -> float:
    """Tokens of a completion, end token included. Shape: [C]. Unit: tokens."""
    return float(len(token_ids))


def repetition_rate(token_ids: Sequence[int], *, n: int = NGRAM) -> float:
    """The share of a completion's n-grams that stood in it before.

    Shape: [C]. n-grams overlap, so there are C - n + 1; a completion of fewer than n tokens has none, and repeats none.
    """
    ngrams = Counter(zip(*(token_ids[i:] for i in range(n)), strict=False))
    total = ngrams.total()
    return (total - len(ngrams)) / total if total else 0.0


def is_blank(text: str) -> bool:
    """Whether there is nothing but white space."""
    return not text.strip()


def has_keyword(text: str, keyword: str) -> bool:
    """Whether the keyword stands anywhere in the text, also inside a word; upper and lower case are one."""
    return keyword.casefold() in text.casefold()


def metrics_of(completions: Sequence[Observed], asked: Asked) -> tuple[list[Metric], list[str]]:
    """The metrics that these completions have, and what is said of those that they do not have."""
    found = [
        Metric(name="length", kind="length", unit="tokens", of=lambda one: length(one.token_ids)),
        Metric(name="repetition", kind="repetition", unit="share", of=lambda one: repetition_rate(one.token_ids)),
    ]
    notes = []
    silent = sum(one.text is None for one in completions)
    if silent:
        also = ", keywords and format" if asked.needs_text else ""
        notes.append(f"{silent} of {len(completions)} completions have no text: blank ones{also} are not compared")
    else:
        found += _of_text(asked)
    reasons = {one.finish_reason for one in completions}
    if "" in reasons:
        notes.append("finish reasons are not known of all completions, and not compared")
    else:
        found += [_finish(reason) for reason in sorted(reasons - {STOP})]
    return found, notes


def _of_text(asked: Asked) -> list[Metric]:
    found = [_rate("blank", is_blank)]
    found += [_rate(f"keyword {word}", _keyword(word)) for word in asked.keywords]
    return found + ([] if asked.parses is None else [_rate("parses", asked.parses)])


def _keyword(word: str) -> Callable[[str], bool]:
    return lambda text: has_keyword(text, word)


def _rate(name: str, holds: Callable[[str], bool]) -> Metric:
    def value(one: Observed) -> float:
        assert one.text is not None, "metrics_of asked"
        return float(holds(one.text))

    return Metric(name=name, kind="rate", unit="rate", of=value)


def _finish(reason: str) -> Metric:
    return Metric(name=f"finish {reason}", kind="rate", unit="rate", of=lambda one: float(one.finish_reason == reason))
