"""Does the trainer already prefer what was rewarded? Then it has learnt what the rollout engine has not."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from onepolicy.numerics.steps.series import declared_stale
from onepolicy.records.step import AdvantageLink, StepRecord

WINDOWS = (5, 10, 20)
"""the last steps, added up"""
HISTORY = 64
LEAST_BEFORE = 10
"""steps before the window that make a link of its own that the new one must exceed"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The correlation of a rollout's mean d with its advantage over some steps, each step around its own means."""

    steps: int
    rollouts: int
    z: float
    """with the variance that it would have if advantages were dealt out at random within each step"""
    correlation: float
    slope: float
    """by how much the mean d is higher where the advantage is higher by one standard deviation, in nats per token"""
    excess: float
    """z of the difference to the steps before; inf if there are too few of them"""


class _Step(NamedTuple):
    correlation: float
    slope: float
    rollouts: int


@dataclass(slots=True, kw_only=True)
class Links:
    """Online: one step after the other, constant memory.

    Two engines with the same weights give no reason for the trainer to prefer what was rewarded, but for one: rollouts
    that the policy is unsure of are further off (E[d] = -KL) and often worse. That link is weak, of about the size of
    the KL itself, and there from the start; so a link must be larger than the KL, or than it was before.
    """

    _steps: deque[_Step] = field(default_factory=lambda: deque(maxlen=HISTORY))

    def add(self, record: StepRecord) -> None:
        """Take in a step, unless some of its tokens say that they are stale, which explains a link."""
        found = _usable(record)
        if found is not None:
            self._steps.append(found)

    def clear(self) -> None:
        """Begin anew."""
        self._steps.clear()

    def now(self) -> Link | None:
        """The clearest of those over the last steps; None if no step had advantages that differ."""
        steps = list(self._steps)
        found = [_over(steps[-n:], steps[:-n]) for n in WINDOWS if steps]
        return max(found, key=lambda link: link.z, default=None)


def link_over(records: Iterable[StepRecord]) -> Link | None:
    """Over all of some steps; None if none of them has advantages that differ."""
    steps = [step for record in records if (step := _usable(record)) is not None]
    return _over(steps, []) if steps else None


def _usable(record: StepRecord) -> _Step | None:
    return None if declared_stale(record) else _of_step(record.advantage)


def _over(steps: list[_Step], before: list[_Step]) -> Link:
    degrees, correlation = _pooled(steps)
    excess = math.inf
    if len(before) >= LEAST_BEFORE:
        earlier_degrees, earlier = _pooled(before)
        excess = (correlation - earlier) / math.sqrt(1 / degrees + 1 / earlier_degrees)
    return Link(
        steps=len(steps),
        rollouts=sum(step.rollouts for step in steps),
        z=correlation * math.sqrt(degrees),
        correlation=correlation,
        slope=sum((step.rollouts - 1) * step.slope for step in steps) / degrees,
        excess=excess,
    )


def _pooled(steps: list[_Step]) -> tuple[int, float]:
    degrees = sum(step.rollouts - 1 for step in steps)
    return degrees, sum((step.rollouts - 1) * step.correlation for step in steps) / degrees


def _of_step(sums: AdvantageLink) -> _Step | None:
    """None if all advantages, or all d, are the same: there is nothing to correlate."""
    n = sums.rollouts
    if n < 3:
        return None
    aa = sums.advantage_squared - sums.advantage**2 / n
    dd = sums.d_squared - sums.d**2 / n
    ad = sums.advantage_d - sums.advantage * sums.d / n
    if not (aa > 1e-12 * sums.advantage_squared and dd > 1e-12 * sums.d_squared and math.isfinite(dd)):
        return None
    return _Step(correlation=ad / math.sqrt(aa * dd), slope=ad / math.sqrt(aa * (n - 1)), rollouts=n)
