"""The value of one field with which a server draws what it draws where the field is left out."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from onepolicy.sampling.measured.agreement import NOTHING, Agreement, Completions, agreement, chance, differs
from onepolicy.sampling.measured.knobs import Fields, Knob

DOUBT = 0.01
"""chance of so many differing tokens, under which a field that could be off is looked for all the same"""
LIKELY = 0.05
"""chance of so many differing tokens, under which a rounder value than the nearest is not shown"""
NOT_KNOWN = "not known"
"""how the source begins of a field that could not be measured"""
Draw = Callable[[Fields], Completions | None]
"""fields that are sent -> completions of the same prompts under the same seeds each time; None if they are refused"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The effective value of a field, as far as it shows."""

    field: str
    value: float | None = None
    """None if it is not known"""
    low: float = -math.inf
    """the nearest lower value with which other tokens are drawn"""
    high: float = math.inf
    """the nearest higher one"""
    seen: Agreement = NOTHING
    """with the value sent, against the field left out"""
    tried: int = 0
    """values that were sent"""
    why: str = ""
    """why it is not known"""

    def could_be(self, value: float) -> bool:
        """Whether the server could use another value, for all that was seen."""
        place = math.inf if self.field == "top_k" and value == 0 else value
        return self.value is not None and (self.value == value or self.low < place < self.high)

    def __str__(self) -> str:
        if self.value is None:
            return f"{NOT_KNOWN}: {self.why}"
        others = " and ".join(f"{edge:g}" for edge in (self.low, self.high) if math.isfinite(edge))
        same = "the same" if not self.seen.differed else f"all but {self.seen.differed} of the"
        return f"measured: {self.value:g} draws {same} {self.seen.compared} tokens, {others} others"


@dataclass(slots=True, kw_only=True)
class Search:
    """Of one field."""

    knob: Knob
    draw: Draw
    left_out: Completions
    """the completions of a request without the field"""
    floor: Agreement
    """of one request repeated"""
    seen: dict[float, Agreement | None] = field(default_factory=dict)
    """value that was sent -> how far its completions agree; None if it was refused"""

    def found(self) -> Measured:
        """The value, and the nearest ones on both sides that are not it."""
        best = self.knob.off if self._is_off() else self._nearest()
        if best is None:
            return self._unknown("the server refuses every value that was sent")
        seen = self.seen[best]
        assert seen is not None
        self._bracket(best)
        if differs(seen, floor=self.floor):
            return self._unknown(f"no value draws the same tokens; with {best:g}, the nearest, {seen} differ")
        if not any(self._differs(value) for value in self.seen):
            return self._unknown("the same tokens are drawn whatever is sent: the server drops the field")
        low, high = self._edges(best)
        return Measured(field=self.knob.field, value=best, low=low, high=high, seen=seen, tried=len(self.seen))

    def _unknown(self, why: str) -> Measured:
        return Measured(field=self.knob.field, why=why, tried=len(self.seen))

    def _at(self, value: float) -> Agreement | None:
        if value not in self.seen:
            drawn = self.draw({**self.knob.others, self.knob.field: value})
            self.seen[value] = None if drawn is None else agreement(self.left_out, drawn)
        return self.seen[value]

    def _rate(self, value: float) -> float:
        found = self._at(value)
        return math.inf if found is None else found.rate

    def _differs(self, value: float) -> bool:
        found = self._at(value)
        return found is not None and differs(found, floor=self.floor)

    def _is_off(self) -> bool:
        found = self._at(self.knob.off)
        return found is not None and chance(found, floor=self.floor) >= DOUBT

    def _nearest(self) -> float | None:
        """The value that differs least: over the whole range, then in ever smaller steps."""
        best = next((value for value in self.knob.ladder if self._rate(value) == 0.0), None)
        best = min((self.knob.off, *self.knob.ladder), key=self._rate) if best is None else best
        if self._at(best) is None:
            return None
        for scale in self.knob.scales:
            best = self._climbed(best, scale)
        return self._roundest(best)

    def _climbed(self, best: float, scale: float) -> float:
        for sign in (-1.0, 1.0):
            while self._rate(best) > 0.0:
                moved = self.knob.moved(best, sign * scale)
                if moved is None or self._rate(moved) >= self._rate(best):
                    break
                best = moved
        return best

    def _roundest(self, best: float) -> float:
        """Of the values that differ no more than the best by what chance does, the one with the fewest digits."""
        nearest = self.seen[best]
        assert nearest is not None
        floor = self.floor + nearest
        good = [value for value, one in self.seen.items() if one is not None and chance(one, floor=floor) >= LIKELY]
        return min(good or [best], key=lambda value: (len(f"{value:g}".rstrip("0")), self._rate(value)))

    def _bracket(self, best: float) -> None:
        """Look on both sides for the nearest value that draws otherwise."""
        steps = (self._steps(best, -1.0), self._steps(best, 1.0))
        for side in (self.knob.below, self.knob.above) if best == self.knob.off else steps:
            for value in side:
                if self._differs(value):
                    break

    def _steps(self, best: float, sign: float) -> tuple[float, ...]:
        found = (self.knob.moved(best, sign * scale) for scale in reversed(self.knob.scales))
        return tuple(dict.fromkeys(value for value in found if value is not None))

    def _edges(self, best: float) -> tuple[float, float]:
        place = self.knob.place
        others = [place(value) for value in self.seen if self._differs(value)]
        low = max((value for value in others if value < place(best)), default=-math.inf)
        return low, min((value for value in others if value > place(best)), default=math.inf)
