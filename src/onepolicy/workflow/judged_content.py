"""Is a stored judgement of what the run holds now? A run can be recorded again under a judgement that stays."""

from __future__ import annotations

import math

from onepolicy.numerics.table import reductions
from onepolicy.records.run import Run
from onepolicy.records.verdict import Judgement
from onepolicy.workflow.measure import measure
from onepolicy.workflow.progress import Silent

_NEAR = 1e-6
"""of a number that another machine works out from the same logprobs"""


def is_of_content(judgement: Judgement, run: Run) -> bool:
    """Whether the numbers of a judgement are those of the run's two readings, worked out anew.

    A judgement of nothing is of no content. Raises: RunError if a reading is damaged.
    """
    readings = (judgement.rollout_reading, judgement.trainer_reading)
    if not set(readings) <= set(run.reading_names()):
        return False
    measured = measure(run, run, *readings, progress=Silent())
    now, then = reductions(measured), judgement.metrics
    counted = (judgement.counts.get("rollouts"), judgement.counts.get("tokens_compared"))
    same = counted == (measured.rollouts, measured.valid) and measured.valid > 0
    return same and bool(then) and then.keys() <= now.keys() and all(_near(now[name], then[name]) for name in then)


def _near(a: float, b: float) -> bool:
    return (math.isnan(a) and math.isnan(b)) or math.isclose(a, b, rel_tol=_NEAR, abs_tol=1e-9)
