"""Prompts with a rollout that is far off: what a mean cannot exclude."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field

from onepolicy.judgement.limits import Limits
from onepolicy.judgement.statistics import binomial_bounds
from onepolicy.numerics.steps.level import LOOK_ALPHA
from onepolicy.numerics.steps.record import WORST_EDGES
from onepolicy.numerics.steps.series import declared_stale
from onepolicy.records.step import StepRecord

WINDOWS = (1, 16)


@dataclass(slots=True, kw_only=True)
class Outliers:
    """Online: the last steps' prompts, and how many of them have a rollout beyond the limit."""

    _steps: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=max(WINDOWS)))

    def add(self, record: StepRecord, limits: Limits) -> str:
        """That their share is beyond its limit, or nothing. Steps with stale tokens say nothing of the engines."""
        if not record.worst_rollouts or declared_stale(record):
            return ""
        self._steps.append((beyond(record, limits.worst_rollout_kl), sum(record.worst_rollouts)))
        return next((text for steps in WINDOWS if (text := self._over(steps, limits))), "")

    def _over(self, steps: int, limits: Limits) -> str:
        last = list(self._steps)[-steps:]
        bad, of = sum(b for b, _ in last), sum(n for _, n in last)
        if bad <= limits.outlier_rate * of:
            return ""
        low, _ = binomial_bounds(bad=bad, of=of, lower_alpha=LOOK_ALPHA, upper_alpha=LOOK_ALPHA)
        if low <= limits.outlier_rate:
            return ""
        where = "this step" if len(last) == 1 else f"the last {len(last)} steps"
        return (
            f"{bad} of {of} prompts of {where} have a rollout beyond a mean k3 of {limits.worst_rollout_kl:g}; at "
            f"least {low:.0%} of all do, limit {limits.outlier_rate:.0%}. Look at the worst rollouts."
        )


def beyond(record: StepRecord, limit: float) -> int:
    """Prompts whose worst rollout lies in an interval that is wholly beyond the limit: at least so many."""
    return sum(record.worst_rollouts[bisect_left(WORST_EDGES, limit) + 1 :])
