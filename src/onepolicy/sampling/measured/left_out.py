"""What a server samples with for a request that leaves fields out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from onepolicy.sampling.measured.agreement import NOTHING, Agreement, Completions, agreement, differs
from onepolicy.sampling.measured.knobs import KNOBS, OFF, Fields, Knob
from onepolicy.sampling.measured.search import Draw, Measured, Search

REPEATS = 3
"""times one request is repeated, to see how far the server repeats itself"""
RESTLESS = 0.05
"""share of tokens that differ between repeats above which draws tell nothing"""
NEUTRAL: Fields = {"min_new_tokens": 0, "stop": (), "stop_token_ids": (), "ignore_eos": False}
"""fields that are sent as they change nothing, all together: another default would end completions elsewhere"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Of one server."""

    fields: Mapping[str, Measured]
    """field -> its effective value; of those that were asked for"""
    floor: Agreement
    """of one request, repeated"""
    together: Agreement = NOTHING
    """of a request that leaves all out with one that sends all as measured, and the neutral ones"""
    sent: tuple[str, ...] = ()
    """the fields of that request"""
    completions: int = 0
    """that were drawn"""

    @property
    def holds(self) -> bool:
        """Whether what was measured, sent together, draws what is drawn where all is left out."""
        return self.together.compared > 0 and not differs(self.together, floor=self.floor)


@dataclass(slots=True, kw_only=True)
class _Drawn:
    """Draws each request once; repeats are asked for by the server itself."""

    draw: Draw
    kept: dict[str, Completions | None] = field(default_factory=dict)
    completions: int = 0

    def __call__(self, fields: Fields) -> Completions | None:
        key = repr(sorted(fields.items()))
        if key not in self.kept:
            self.kept[key] = self.again(fields)
        return self.kept[key]

    def again(self, fields: Fields) -> Completions | None:
        drawn = self.draw(fields)
        self.completions += len(drawn or ())
        return drawn


def measured_left_out(
    draw: Draw, *, names: Collection[str], neutral: Fields = NEUTRAL, done: Callable[[str], None] = lambda _: None
) -> LeftOut:
    """The effective values of fields, each by requests that leave it out and requests that send it.

    names: which, of `OFF`. neutral: what is sent beside them in the last request. done: told of each that is finished.
    """
    drawn = _Drawn(draw=draw)
    floor = _floor(drawn)
    done("seeds")
    if floor.rate > RESTLESS:
        why = f"with one seed the server draws other tokens each time ({floor} differ)"
        return LeftOut(fields={name: Measured(field=name, why=why) for name in names}, floor=floor)
    found: dict[str, Measured] = {}
    for knob in KNOBS:
        if knob.field in names:
            found[knob.field] = one = _measured(knob, drawn, floor)
            # off was not sought among others, so its draws show again how far the server repeats itself
            floor += one.seen if one.value == knob.off else NOTHING
            done(knob.field)
    values = {name: one.value for name, one in found.items() if one.value is not None}
    together = _together(drawn, {**values, **neutral})
    done("all together")
    sent = (*values, *neutral)
    return LeftOut(fields=found, floor=floor, together=together, sent=sent, completions=drawn.completions)


def _floor(drawn: _Drawn) -> Agreement:
    first = drawn(OFF)
    again: Sequence[Completions | None] = [drawn.again(OFF) for _ in range(REPEATS)] if first else []
    return sum((agreement(first or (), one) for one in again if one), start=NOTHING)


def _measured(knob: Knob, drawn: _Drawn, floor: Agreement) -> Measured:
    left_out = drawn(knob.others)
    if left_out is None:
        return Measured(field=knob.field, why="the server refuses a request without it")
    return Search(knob=knob, draw=drawn, left_out=left_out, floor=floor).found()


def _together(drawn: _Drawn, fields: Mapping[str, Any]) -> Agreement:
    one, other = drawn({}), drawn(fields)
    return NOTHING if one is None or other is None else agreement(one, other)
