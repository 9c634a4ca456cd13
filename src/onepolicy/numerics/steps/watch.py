"""What a step shows, said once: used step by step in training, and over recorded steps in the same way."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from onepolicy.judgement.limits import Limits
from onepolicy.numerics.steps.about import Changes
from onepolicy.numerics.steps.jump import Exactness, Jump, Jumps
from onepolicy.numerics.steps.lag import LARGEST, Lags
from onepolicy.numerics.steps.level import Level, Levels
from onepolicy.numerics.steps.outliers import Outliers
from onepolicy.numerics.steps.series import Point, Standardised
from onepolicy.numerics.steps.stale import Staleness
from onepolicy.records.step import Alarm, StepRecord

Kind = Literal["limit", "jump", "stale", "outliers", "invalid", "monitor"]
QUIET_STEPS = 3
"""steps without it, after which a thing is said again when it comes back"""


@dataclass(slots=True)
class Watch:
    """Looks at each step as it comes: alarms, in constant memory, the same for the same steps.

    What lasts is said when it begins, and not again before it has been away for some steps.
    """

    limits: Limits = field(default_factory=Limits)
    _series: Standardised = field(default_factory=Standardised)
    _levels: Levels = field(default_factory=Levels)
    _jumps: Jumps = field(default_factory=Jumps)
    _exact: Exactness = field(default_factory=Exactness)
    _stale: Staleness = field(default_factory=Staleness)
    _lags: Lags = field(default_factory=Lags)
    _outliers: Outliers = field(default_factory=Outliers)
    _changes: Changes = field(default_factory=Changes)
    _away: dict[str, int] = field(default_factory=dict)
    """steps since a thing was last there"""

    def add(self, record: StepRecord) -> tuple[Alarm, ...]:
        """What this step shows that was not said before."""
        self._changes.add(record)
        self._levels.add(record)
        found: list[tuple[Kind, str]] = [
            *self._once("invalid", "invalid", invalid_values(record)),
            *self._once("invalid", "coverage", uncovered(record, self.limits)),
            *self._once("limit", "limit", self._beyond_limit()),
            *self._once("outliers", "outliers", self._outliers.add(record, self.limits)),
            *self._once("stale", "lag", falling_behind(self._lags.add(record))),
        ]
        points = self._series.add(record)
        logs = [point for point in points if math.isfinite(point.log_k3)]
        stale = self._stale.add(record, logs, self._levels.mean(20))
        found += [("stale", stale)] if stale else []
        found += [("jump", text) for text in (self._became_unequal(record, points), self._jump(record, logs)) if text]
        return tuple(Alarm(step=record.step, kind=kind, message=f"step {record.step}: {text}") for kind, text in found)

    def _once(self, kind: Kind, name: str, text: str) -> list[tuple[Kind, str]]:
        new = bool(text) and self._away.get(name, QUIET_STEPS) >= QUIET_STEPS
        self._away[name] = 0 if text else self._away.get(name, QUIET_STEPS) + 1
        return [(kind, text)] if new else []

    def _beyond_limit(self) -> str:
        """The interval over some of the last steps lies beyond; after that, their mean is enough to be still there."""
        beyond = self._levels.beyond(self.limits.mean_kl)
        if beyond is not None:
            return beyond_limit(beyond, self.limits.mean_kl)
        lasts = self._away.get("limit", QUIET_STEPS) < QUIET_STEPS
        return "still" if lasts and self._levels.mean(4) > self.limits.mean_kl else ""

    def _jump(self, record: StepRecord, points: list[Point]) -> str:
        """A jump upwards. While weights do not arrive, the level says nothing of the engines."""
        if self._stale.active:
            return ""
        if self._stale.ended:
            self._jumps.settle()
        found = [jump for point in points if (jump := self._jumps.add(point.log_k3)) is not None and jump.factor > 1]
        return jumped(found[-1], self._changes.near(record.step)) if found else ""

    def _became_unequal(self, record: StepRecord, points: list[Point]) -> str:
        for _, value in points:
            before = self._exact.add(equal=math.isinf(value))
            if before is not None:
                return (
                    f"both sides were equal bit by bit in {before} steps, and are not in the last three; mean k3 is "
                    f"{math.exp(value):.2g} now.{self._changes.near(record.step)}"
                )
        return ""


def invalid_values(record: StepRecord) -> str:
    """Values that are no logprobs, or nothing."""
    if not record.invalid:
        return ""
    return (
        f"{record.invalid:,} of {record.compared:,} tokens have something on one side that is no logprob (NaN, "
        "infinite, above 0, or at or below -1000). Look at the rollouts of this step before training on it."
    )


def uncovered(record: StepRecord, limits: Limits) -> str:
    """Too few tokens with a logprob on both sides, or nothing."""
    if record.valid >= limits.coverage * record.compared:
        return ""
    return (
        f"{record.valid:,} of {record.compared:,} tokens ({record.valid / record.compared:.1%}) have a logprob on both "
        f"sides, limit {limits.coverage:.0%}. What has none is compared with nothing. Find out what left it out."
    )


def beyond_limit(level: Level, limit: float) -> str:
    """The level of some steps, with the lower end that is beyond the limit."""
    steps = "this step" if level.steps == 1 else f"the last {level.steps} steps"
    return (
        f"mean k3 {level.value:.2g} nats per token over {level.tokens:,} tokens of {steps} (at least {level.low:.2g}, "
        f"with a bound that holds for a look at every step), limit {limit:g}."
    )


def falling_behind(lag: int | None) -> str:
    """A lag that grows, or nothing."""
    if lag is None:
        return ""
    many = f"{lag} or more" if lag == LARGEST else str(lag)
    return (
        f"the newest weights that rollouts are sampled with are {many} steps behind the trainer's (or ahead of them), "
        "and fall behind further with each step: the updated weights do not reach the rollout engine. This is "
        "staleness that the weight versions declare, and no numerics. Check the weight sync."
    )


def jumped(jump: Jump, near: str) -> str:
    """A jump with its size, and what may have made it."""
    return (
        f"mean k3 of the trainer's own weights jumped from {jump.before:.2g} to {jump.after:.2g} ({jump.factor:.2g} "
        f"times, {jump.score:.0f} times the usual surprise).{near}"
    )
