"""Weights that do not arrive although no version says so: growth, and the link to what was rewarded."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from onepolicy.numerics.steps.growth import BLOCK, BLOCKS, Growth, Growths
from onepolicy.numerics.steps.link import Link, Links
from onepolicy.numerics.steps.series import Point
from onepolicy.records.step import StepRecord

GROWN = math.log(3.0)
"""growth over the floor that speaks by itself"""
GROWN_LINKED = math.log(1.5)
"""growth over the floor that speaks together with the link"""
LINK_Z = 5.5
"""a link that speaks by itself"""
LINKED_Z = 4.0
"""a link that speaks together with growth"""
ENDED = math.log(1.5)
"""over the floor: below it, weights arrive again"""
FLAT_STEPS = 30
"""without growth, after which a level is a level"""


@dataclass(slots=True, kw_only=True)
class Staleness:
    """Online: constant memory. Quiet again when the level is back, or has long stopped growing."""

    _growths: Growths = field(default_factory=Growths)
    _links: Links = field(default_factory=Links)
    _floor: float | None = None
    """of the growth that was found; nats per token"""
    _flat: int = 0
    active: bool = False
    """whether weights do not arrive, as far as it is known"""
    ended: bool = False
    """whether the last step ended it"""

    def add(self, record: StepRecord, points: list[Point], k3: float) -> str:
        """What is found in this step and was not before. k3: mean over the last steps, nats per token."""
        self._links.add(record)
        for point in points:
            self._growths.add(point)
        link = self._links.now()
        self.ended = False
        if self.active:
            self._go_on(self._growths.now(), link, k3)
            return ""
        growth = next((g for block in BLOCKS if (g := self._growths.now(block)) is not None and _grown(g, link)), None)
        linked = link is not None and (_supports(link, growth) if growth else _strong(link, k3, LINK_Z))
        if growth is None and not linked:
            return ""
        self.active, self._flat = True, 0
        self._floor = None if growth is None else growth.floor
        return message(growth, link, linked=linked)

    def _go_on(self, growth: Growth | None, link: Link | None, k3: float) -> None:
        linked = link is not None and _strong(link, k3, LINKED_Z)
        grows = growth is not None and growth.blocks[2] > growth.blocks[1] > growth.blocks[0]
        self._flat = 0 if grows or linked else self._flat + 1
        over = growth is not None and self._floor is not None and math.log(growth.now / self._floor) > ENDED
        patience = FLAT_STEPS if over else BLOCK
        if self._flat >= patience:
            self.active, self.ended = False, True
            self._growths.clear()
            self._links.clear()


def _grown(growth: Growth, link: Link | None) -> bool:
    """Much by itself, or less with a link beside it."""
    return growth.rising and growth.total >= (GROWN_LINKED if _supports(link, growth) else GROWN)


def _supports(link: Link | None, growth: Growth) -> bool:
    return link is not None and _strong(link, growth.floor / 3, LINKED_Z)


def _strong(link: Link, k3: float, z: float) -> bool:
    """Larger than chance, than before, and than what comes from uncertain rollouts being worse and further off."""
    return link.z >= z and link.excess >= z - 1 and link.slope > k3


def message(growth: Growth | None, link: Link | None, *, linked: bool) -> str:
    """What was found, in numbers, and what to do."""
    parts = [] if growth is None else [_in_words(growth)]
    doubt = ""
    if linked and link is not None:
        parts.append(
            f"the trainer prefers what was rewarded (z = {link.z:.1f}, correlation {link.correlation:.2f} over "
            f"{link.rollouts:,} rollouts)"
        )
    elif link is not None:
        doubt = (
            f" The trainer does not clearly prefer what was rewarded (z = {link.z:.1f}); if the growth ends, it was "
            "another engine, precision or configuration."
        )
    return (
        f"{', and '.join(parts)}: the updated weights do not reach the rollout engine. Check the weight sync; if "
        f"rollouts are meant to come from older weights, record the weight versions.{doubt}"
    )


def _in_words(growth: Growth) -> str:
    first, last = growth.floor_steps
    return (
        f"tokens that should come from the trainer's own weights differ by k3 {growth.now:.2g} (floor of steps {first} "
        f"to {last}: {growth.floor:.2g}), growing with each step"
    )
