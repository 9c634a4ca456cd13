"""Records and alarms of a training -> verdicts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from onepolicy.judgement.limits import Limits
from onepolicy.numerics.steps.growth import BLOCK
from onepolicy.numerics.steps.level import WINDOWS, Level, Levels
from onepolicy.numerics.steps.series import sums
from onepolicy.records.step import Alarm, StepEvent, StepRecord
from onepolicy.records.verdict import Status, Verdict

LEAST_STEPS = 3 * BLOCK
"""with fewer steps of the trainer's own weights nothing is known of their growth"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What is known of a training."""

    records: Sequence[StepRecord]
    alarms: Sequence[Alarm]
    events: Sequence[StepEvent]

    def alarm(self, *kinds: str) -> str:
        """The first alarm of some kinds, and how many more there are; empty if there is none."""
        found = [alarm.message for alarm in self.alarms if alarm.kind in kinds]
        more = f" ({len(found) - 1} more)" if len(found) > 1 else ""
        return f"{found[0]}{more}" if found else ""


def verdicts_of(seen: Seen, limits: Limits) -> list[Verdict]:
    """The checks of a timeline, in the order in which they decide."""
    return [_valid(seen), _coverage(seen, limits), _arrive(seen), mean_kl(seen, limits), _jumps(seen), *_outliers(seen)]


def _valid(seen: Seen) -> Verdict:
    text = seen.alarm("invalid")
    return _verdict("valid_logprobs", Status.FAIL if text else Status.PASS, text or "every value is a logprob.")


def _coverage(seen: Seen, limits: Limits) -> Verdict:
    compared, valid = (sum(getattr(record, name) for record in seen.records) for name in ("compared", "valid"))
    without = sum(not record.valid for record in seen.records)
    text = f"{valid:,} of {compared:,} tokens of {len(seen.records):,} steps have a logprob on both sides"
    if not seen.records:
        return _verdict("coverage", Status.UNKNOWN, "there is no step.")
    if without:
        return _verdict("coverage", Status.UNKNOWN, f"{text}; {without} steps have none. Nothing is known of those.")
    status = Status.PASS if valid >= limits.coverage * compared else Status.FAIL
    return _verdict("coverage", status, f"{text}, limit {limits.coverage:.0%}.")


def _arrive(seen: Seen) -> Verdict:
    """Do the updated weights reach the rollout engine?"""
    text = seen.alarm("stale")
    if text:
        return _verdict("weights_arrive", Status.FAIL, text)
    steps = sum(sums(record)[0] > 0 for record in seen.records)
    if steps < LEAST_STEPS:
        return _verdict(
            "weights_arrive",
            Status.UNKNOWN,
            f"{steps} steps have tokens of the trainer's own weights; {LEAST_STEPS} are needed to see whether the "
            "mismatch grows as that of weights does that are not sent. Record more steps.",
        )
    return _verdict("weights_arrive", Status.PASS, f"nothing in {steps:,} steps says that weights do not arrive.")


def mean_kl(seen: Seen, limits: Limits) -> Verdict:
    """Held against the limit in each stretch of the run, with the interval that holds at every look.

    fail if the watch said that it lies beyond; pass if the upper end lies within the limit in every stretch.
    """
    worst = max(_stretches(seen.records), key=lambda level: level.high, default=None)
    text = seen.alarm("limit")
    if text or worst is None:
        why = text or (
            "no step has enough prompts, or tokens of the trainer's own weights, to say anything about the mean. "
            "Record more."
        )
        status = Status.FAIL if text else Status.UNKNOWN
        return _verdict("mean_kl", status, why, limit=limits.mean_kl)
    shown = (
        f"mean k3 of the trainer's own weights {worst.value:.2g} nats per token, at most {worst.high:.2g} in the worst "
        f"{worst.steps} steps of {len(seen.records):,}, limit {limits.mean_kl:g}"
    )
    within = worst.high <= limits.mean_kl
    more = "" if within else " lies inside. More prompts in each step would decide"
    status = Status.PASS if within else Status.UNKNOWN
    return _verdict("mean_kl", status, f"{shown}{more}.", level=worst, limit=limits.mean_kl)


def _stretches(records: Sequence[StepRecord]) -> Iterator[Level]:
    """Of the largest window each; the last one reaches back into the one before."""
    levels, longest, since = Levels(), max(WINDOWS), 0
    for record in records:
        tokens, _ = sums(record)
        levels.add(record)
        since += tokens > 0
        if since == longest:
            since = 0
            yield from _longest(levels)
    if since:
        yield from _longest(levels)


def _longest(levels: Levels) -> Iterator[Level]:
    level = levels.longest()
    if level is not None:
        yield level


def _jumps(seen: Seen) -> Verdict:
    text = seen.alarm("jump")
    return _verdict("jumps", Status.FAIL if text else Status.PASS, text or "the level never jumped.")


def _outliers(seen: Seen) -> Iterator[Verdict]:
    """Only where they were said: a mean that passes does not exclude them, and they do not decide alone."""
    text = seen.alarm("outliers")
    if text:
        yield _verdict("outlier_rollouts", Status.UNKNOWN, text)


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
