"""The fields whose effective value shows in what is drawn, and the values with which each is looked for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Fields = Mapping[str, Any]
"""names of a protocol's fields -> what a request sends; a field that is not named is left out of it"""
OFF: Fields = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
"""what is sent for the other fields while one is looked for, so that none hides it"""
_DIGITS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """One field."""

    field: str
    ladder: tuple[float, ...]
    """values that are tried first if it is not off, over the whole range, the most usual first"""
    scales: tuple[float, ...]
    """steps around the best of them, the largest first"""
    below: tuple[float, ...] = ()
    """values under off, the nearest first, that show how far from off it could be"""
    above: tuple[float, ...] = ()
    relative: bool = False
    """steps are shares of the value"""
    lowest: float = -math.inf
    highest: float = math.inf
    beside: Fields | None = None
    """what to send for others instead of off, so that it shows more"""

    @property
    def off(self) -> float:
        """The value that changes nothing."""
        off: float = OFF[self.field]
        return off

    @property
    def others(self) -> Fields:
        """What is sent beside it, or beside its absence."""
        return {name: value for name, value in OFF.items() if name != self.field} | dict(self.beside or {})

    def place(self, value: float) -> float:
        """Where a value stands among the others; a top_k that is off keeps more than any."""
        return math.inf if self.field == "top_k" and value == 0 else value

    def moved(self, value: float, scale: float) -> float | None:
        """The value a step away, up or (scale below 0) down; None if it cannot be."""
        if self.field == "top_k":
            step = max(1, round(abs(scale) * value))
            found: float = int(value + math.copysign(step, scale))
        else:
            found = round(value + scale * (value if self.relative else 1.0), _DIGITS)
        return found if self.lowest <= found <= self.highest else None


KNOBS = (
    Knob(
        field="temperature",
        ladder=(0.7, 0.6, 0.8, 0.0, 0.3, 1.2, 1.5),
        scales=(0.1, 0.03, 0.01),
        below=(0.97, 0.9, 0.5),
        above=(1.03, 1.1, 2.0),
        lowest=0.0,
        highest=2.0,
    ),
    Knob(
        field="top_p",
        ladder=(0.9, 0.95, 0.8, 0.6, 0.3, 0.98),
        scales=(0.1, 0.03, 0.01),
        below=(0.98, 0.9, 0.5),
        lowest=0.01,
        highest=1.0,
    ),
    Knob(
        field="top_k",
        ladder=(20, 50, 40, 10, 3, 1, 100, 300),
        scales=(0.5, 0.2, 0.05, 0.02),
        below=(300, 50, 5, 1),
        lowest=1,
        beside={"temperature": 1.5},
    ),
    Knob(
        field="min_p",
        ladder=(0.05, 0.1, 0.02, 0.01, 0.2, 0.5),
        scales=(0.4, 0.2, 0.1),
        above=(0.005, 0.02, 0.1, 0.5),
        relative=True,
        lowest=0.0,
        highest=1.0,
    ),
    Knob(
        field="repetition_penalty",
        ladder=(1.1, 1.2, 1.05, 1.3, 1.5, 0.9, 2.0),
        scales=(0.1, 0.03, 0.01),
        below=(0.97, 0.9, 0.7),
        above=(1.03, 1.1, 1.5),
        lowest=0.01,
    ),
    Knob(
        field="presence_penalty",
        ladder=(-1.0, 0.3, 0.6, 1.0, 1.5, 2.0),
        scales=(0.2, 0.1, 0.05),
        below=(-0.1, -0.5, -2.0),
        above=(0.1, 0.5, 2.0),
        lowest=-2.0,
        highest=2.0,
    ),
    Knob(
        field="frequency_penalty",
        ladder=(-1.0, 0.3, 0.6, 1.0, 1.5, 2.0),
        scales=(0.2, 0.1, 0.05),
        below=(-0.1, -0.5, -2.0),
        above=(0.1, 0.5, 2.0),
        lowest=-2.0,
        highest=2.0,
    ),
)
"""in the order of the protocol's fields"""
