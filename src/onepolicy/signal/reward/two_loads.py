"""Is the whole model in its files? A head that was not saved is drawn anew at each load."""

from __future__ import annotations

import numpy as np

from onepolicy.records.tokens import Float64
from onepolicy.records.verdict import Verdict
from onepolicy.signal.reward.found import failed, not_checked, passed
from onepolicy.signal.reward.subject import Subject

CHECK = "two_loads"
_SHOWN = 3
_SEED = 1
"""any but that of the first load"""


def two_loads(subject: Subject) -> Verdict:
    """Fails if weights are missing from the files, or a second load gives other scores."""
    if subject.open is None:
        return not_checked(CHECK, "the scorer cannot be loaded here a second time.")
    missing = subject.open.missing
    second = subject.open.again(seed=_SEED)
    try:
        scores = subject.read(second.score(subject.answers))
    finally:
        second.close()
    first = subject.rewards(subject.answers)
    moved = float(np.abs(scores - first).max())
    numbers = {"quantity": "max_score_difference", "value": moved, "limit": 0}
    if missing:
        some = ", ".join(missing[:_SHOWN]) + (f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else "")
        message = (
            f"the files lack {some}, so Transformers draws them at random: scores of two loads differ by up to "
            f"{moved:.3g} and correlate by {_correlation(first, scores):.2f}. Save the head with the model; with an "
            "adapter, name it in modules_to_save and merge into the classification class."
        )
        return failed(CHECK, message, **numbers)
    if moved > 0:
        message = (
            f"two loads of the same files give scores that differ by up to {moved:.3g} (correlation "
            f"{_correlation(first, scores):.2f}). Something is drawn at random, or computed in another order each time."
        )
        return failed(CHECK, message, **numbers)
    return passed(CHECK, f"two loads give the same {len(first)} scores, and no weight is missing.", **numbers)


def _correlation(a: Float64, b: Float64) -> float:
    return float(np.corrcoef(a, b)[0, 1]) if a.std() > 0 and b.std() > 0 else 0.0
