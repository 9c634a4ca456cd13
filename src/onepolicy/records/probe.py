"""What an engine is and what it can do, as it was found out."""

from __future__ import annotations

from onepolicy.records.reading import EngineInfo
from onepolicy.records.strict import Strict


class Fact(Strict):
    """One thing that an engine was asked, and what its answer showed."""

    name: str
    answer: str
    """yes, no, unknown, or a value"""
    how: str
    """the request, and what came back"""


class Probe(Strict):
    """All that was found out about one engine."""

    engine: EngineInfo
    weight_version: str = ""
    """of the weights that answered; empty if the engine does not name them"""
    abilities: tuple[Fact, ...]
    meanings: tuple[Fact, ...]
    """what a logprob is, for each kind of call"""

    def answer(self, name: str) -> str:
        """The answer to one question, by its name. Raises: KeyError if it was not asked."""
        return {fact.name: fact.answer for fact in (*self.abilities, *self.meanings)}[name]
