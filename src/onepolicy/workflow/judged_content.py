"""Is a stored judgement of what the run holds now? A run can be recorded again under a judgement that stays."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import date

from onepolicy.judgement.limits import Limits
from onepolicy.records.looks import Seen
from onepolicy.records.run import Run
from onepolicy.records.stored import read_json
from onepolicy.records.verdict import Judgement, Status, Verdict
from onepolicy.workflow.judge import LIMITS, JudgeRequest, judge_readings
from onepolicy.workflow.progress import Silent

_NEAR = 1e-6
"""of a number that another machine works out from the same logprobs"""


def is_of_content(judgement: Judgement, run: Run) -> bool:
    """Whether the run, judged again with the limits that it keeps, gives these numbers and these answers.

    A judgement of nothing is of no content, and one that a later version adds a check to is. Nothing is written.
    Raises: OnePolicyError if a reading or the limits are damaged or absent, or do not fit the run.
    """
    readings = (judgement.rollout_reading, judgement.trainer_reading)
    if not set(readings) <= set(run.reading_names()):
        return False
    request = JudgeRequest(rollout=readings[0], trainer=readings[1], limits=_kept_limits(run))
    again = judge_readings(_AsItIs(run.path, run.manifest), request, progress=Silent())
    then, now = judgement.metrics, again.metrics
    same = all(judgement.counts.get(name) == again.counts[name] for name in ("rollouts", "tokens_compared"))
    if not (same and then and again.counts["tokens_compared"] and then.keys() <= now.keys()):
        return False
    answered = judgement.status is again.status and _answers(judgement.verdicts) <= _answers(again.verdicts)
    return answered and all(_near(now[name], then[name]) for name in then)


def _kept_limits(run: Run) -> Limits:
    """The limits of a run's judgement; a waiver in them has no end, as it held when it was judged.

    Raises: RunError if they are absent or damaged.
    """
    limits = read_json(run.path / "judgements" / JudgeRequest().name / LIMITS, Limits)
    waivers = tuple(waiver.model_copy(update={"until": date.max}) for waiver in limits.waivers)
    return limits.model_copy(update={"waivers": waivers})


class _AsItIs(Run):
    """A run that is judged again and not changed."""

    def write_look(self, data: Seen) -> None:
        """Nothing: the same data are the same look."""


def _answers(verdicts: Iterable[Verdict]) -> set[tuple[str, Status, bool]]:
    return {(verdict.check, verdict.status, verdict.required) for verdict in verdicts}


def _near(a: float, b: float) -> bool:
    return (math.isnan(a) and math.isnan(b)) or math.isclose(a, b, rel_tol=_NEAR, abs_tol=1e-9)
