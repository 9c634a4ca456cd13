"""Records and alarms of a training -> verdicts. The one decision of the monitor and of `onepolicy timeline`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from onepolicy.judgement.limits import Limits
from onepolicy.numerics.steps.columns import Columns
from onepolicy.numerics.steps.growth import BLOCK
from onepolicy.numerics.steps.level import WINDOWS, Level, Levels
from onepolicy.numerics.steps.series import declared_stale, sums
from onepolicy.records.step import Alarm, StepRecord
from onepolicy.records.verdict import Status, Verdict

LEAST_STEPS = 3 * BLOCK
"""with fewer steps of the trainer's own weights nothing is known of their growth"""
OWN_SHARE = 0.5
"""of the tokens: where fewer are of the trainer's own weights, what they say is not said of the training"""


@dataclass(slots=True, kw_only=True)
class _Stretches:
    """Levels over the largest window each; the last one reaches back into the one before."""

    _levels: Levels = field(default_factory=Levels)
    _since: int = 0
    _worst: Level | None = None
    """of the stretches that are full"""

    def add(self, record: StepRecord) -> None:
        self._levels.add(record)
        self._since += sums(record)[0] > 0
        if self._since == max(WINDOWS):
            self._worst, self._since = self.worst(), 0

    def worst(self) -> Level | None:
        """The one with the highest upper end, with the one that has begun; None if none says anything."""
        now = self._levels.longest() if self._since else None
        return max((level for level in (self._worst, now) if level is not None), key=lambda x: x.high, default=None)


@dataclass(slots=True, kw_only=True)
class Training:
    """What a training's steps showed, in constant memory: steps are added as they come, in the order in which they ran.

    A step that was done again from a checkpoint counts twice: what was found stays found.
    """

    steps: int = 0
    rollouts: int = 0
    empty: int = 0
    """rollouts without a token to compare"""
    compared: int = 0
    valid: int = 0
    without: int = 0
    """steps in which no token has a logprob on both sides"""
    own: int = 0
    """tokens of the trainer's own weights, or of no known version"""
    own_steps: int = 0
    stale: int = 0
    """tokens whose version says that other weights sampled them"""
    masked_rollouts: int = 0
    said: dict[str, int] = field(default_factory=dict)
    """kind of alarm -> how many"""
    _first: dict[str, str] = field(default_factory=dict)
    """kind of alarm -> what the first one says"""
    _columns: Columns = field(default_factory=Columns)
    _stretches: _Stretches = field(default_factory=_Stretches)

    def add(self, record: StepRecord, alarms: Sequence[Alarm]) -> None:
        """Take in a step and what was said of it."""
        own = sums(record)[0]
        self.steps += 1
        self.rollouts += record.rollouts
        self.empty += record.empty_rollouts or 0
        self.compared += record.compared
        self.valid += record.valid
        self.without += not record.valid
        self.own += own
        self.own_steps += own > 0
        self.stale += declared_stale(record)
        self.masked_rollouts += record.masked_rollouts
        self._columns.add(record)
        self._stretches.add(record)
        self.hear(alarms)

    def hear(self, alarms: Sequence[Alarm]) -> None:
        """Take in what was said beside the steps."""
        for alarm in alarms:
            self.said[alarm.kind] = self.said.get(alarm.kind, 0) + 1
            self._first.setdefault(alarm.kind, alarm.message)

    def verdicts(self, limits: Limits) -> list[Verdict]:
        """The checks, in the order in which they decide."""
        return [
            self._without_alarm("valid_logprobs", "invalid", "every value is a logprob."),
            self._coverage(limits),
            *self._rollouts(limits),
            *self._columns.verdicts(limits),
            *self._own_weights(),
            self._arrive(),
            self._mean_kl(limits),
            self._without_alarm("jumps", "jump", "the level never jumped."),
            *self._outliers(),
        ]

    def _alarm(self, kind: str) -> str:
        """The first alarm of a kind, and how many more there are; empty if there is none."""
        more = self.said.get(kind, 0) - 1
        return f"{self._first[kind]}{f' ({more} more)' if more else ''}" if kind in self._first else ""

    def _without_alarm(self, check: str, kind: str, otherwise: str) -> Verdict:
        text = self._alarm(kind)
        return _verdict(check, Status.FAIL if text else Status.PASS, text or otherwise)

    def _coverage(self, limits: Limits) -> Verdict:
        if not self.steps:
            return _verdict("coverage", Status.UNKNOWN, "there is no step.")
        text = f"{self.valid:,} of {self.compared:,} tokens of {self.steps:,} steps have a logprob on both sides"
        if self.without:
            why = f"{text}; {self.without} steps have none. Nothing is known of those."
            return _verdict("coverage", Status.UNKNOWN, why)
        status = Status.PASS if self.valid >= limits.coverage * self.compared else Status.FAIL
        return _verdict("coverage", status, f"{text}, limit {limits.coverage:.0%}.")

    def _rollouts(self, limits: Limits) -> Iterator[Verdict]:
        """Only where too many have nothing to compare: what the masks leave out may differ from what they leave."""
        if self.empty > (1 - limits.coverage) * self.rollouts:
            yield _verdict(
                "rollouts_compared",
                Status.UNKNOWN,
                f"{self.empty:,} of {self.rollouts:,} rollouts have no token to compare: nothing is sampled or trained "
                f"on in them, as their masks say; at most {1 - limits.coverage:.0%} may. Hand over the mask of what "
                "was sampled, also of rollouts that are left out of the loss.",
            )

    def _own_weights(self) -> Iterator[Verdict]:
        """Only where most tokens are of other weights: their distance is no statement about the engines."""
        if self.valid and self.own < OWN_SHARE * self.valid:
            yield _verdict(
                "own_weights",
                Status.UNKNOWN,
                f"{self.stale:,} of {self.valid:,} tokens were sampled by other weights than the trainer's, as their "
                f"versions say, and {self.own:,} by the trainer's own. Of most tokens it is not known whether the two "
                "engines agree: score the rollouts with the weights that sampled them.",
            )

    def _arrive(self) -> Verdict:
        """Do the updated weights reach the rollout engine?"""
        text = self._alarm("stale")
        if text:
            return _verdict("weights_arrive", Status.FAIL, text)
        if self.own_steps < LEAST_STEPS:
            return _verdict(
                "weights_arrive",
                Status.UNKNOWN,
                f"{self.own_steps} steps have tokens of the trainer's own weights; {LEAST_STEPS} are needed to see "
                "whether the mismatch grows as that of weights does that are not sent. Record more steps.",
            )
        why = f"nothing in {self.own_steps:,} steps says that weights do not arrive."
        return _verdict("weights_arrive", Status.PASS, why)

    def _mean_kl(self, limits: Limits) -> Verdict:
        """Held against the limit in each stretch of the run, with the interval that holds at every look.

        fail if the watch said that it lies beyond; pass if the upper end lies within the limit in every stretch.
        """
        worst, text = self._stretches.worst(), self._alarm("limit")
        if text or worst is None:
            why = text or (
                "no step has enough prompts, or tokens of the trainer's own weights, to say anything about the mean. "
                "Record more."
            )
            status = Status.FAIL if text else Status.UNKNOWN
            return _verdict("mean_kl", status, why, limit=limits.mean_kl)
        shown = (
            f"mean k3 of the trainer's own weights {worst.value:.2g} nats per token, at most {worst.high:.2g} in the "
            f"worst {worst.steps} steps of {self.steps:,}, limit {limits.mean_kl:g}"
        )
        within = worst.high <= limits.mean_kl
        more = "" if within else " lies inside. More prompts in each step would decide"
        status = Status.PASS if within else Status.UNKNOWN
        return _verdict("mean_kl", status, f"{shown}{more}.", level=worst, limit=limits.mean_kl)

    def _outliers(self) -> Iterator[Verdict]:
        """Only where they were said: a mean that passes does not exclude them, and they do not decide alone."""
        text = self._alarm("outliers")
        if text:
            yield _verdict("outlier_rollouts", Status.UNKNOWN, text)


def verdicts_of(records: Sequence[StepRecord], alarms: Sequence[Alarm], limits: Limits) -> list[Verdict]:
    """The checks of a timeline, in the order in which they decide. Records in the order in which they ran."""
    training = Training()
    for record in records:
        training.add(record, ())
    training.hear(alarms)
    return training.verdicts(limits)


def _verdict(
    check: str, status: Status, message: str, *, level: Level | None = None, limit: float | None = None
) -> Verdict:
    return Verdict(
        check=check,
        status=status,
        kind="about the policy" if limit is not None else "on these tokens",
        quantity="kl_k3" if limit is not None else "",
        value=None if level is None else level.value,
        low=None if level is None else level.low,
        high=level.high if level is not None and math.isfinite(level.high) else None,
        limit=limit,
        unit="nats per token" if limit is not None else "",
        message=message,
    )
