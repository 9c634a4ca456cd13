"""Does the same answer get the same score when it is asked for again?"""

from __future__ import annotations

import numpy as np

from onepolicy.records.verdict import Verdict
from onepolicy.signal.reward.found import failed, passed
from onepolicy.signal.reward.subject import ROUNDED, Subject, alone

CHECK = "repeats"


def repeats(subject: Subject) -> Verdict:
    """Fails if a repeated call moves scores by more than 16 bits do: dropout, or a judge that samples."""
    again = subject.read(alone(subject.scorer, subject.answers))
    same = int((again == subject.scores).sum())
    total, moved = len(again), float(np.abs(again - subject.scores).max())
    numbers = {"quantity": "equal_share", "value": same / total, "limit": 1.0}
    if moved <= ROUNDED * subject.spread:
        return passed(CHECK, f"{same} of {total} scores are the same when asked for again.", **numbers)
    message = (
        f"{total - same} of {total} scores change when asked for again, by up to {moved:.3g} "
        f"({moved / subject.spread:.2g} spreads): "
        if subject.spread > 0
        else f"{total - same} of {total} scores change when asked for again, by up to {moved:.3g}: "
    )
    remedy = "set the model to eval mode, and let a generative judge answer at temperature 0."
    return failed(CHECK, f"{message}{remedy}", **numbers)
