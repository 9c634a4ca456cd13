"""Are scores handed over in float32, or rounded to 16 bits?"""

from __future__ import annotations

import numpy as np

from onepolicy.records.verdict import Verdict
from onepolicy.signal.reward.found import failed, passed
from onepolicy.signal.reward.grid import coarse_grid, step_of
from onepolicy.signal.reward.subject import ROUNDED, Subject

CHECK = "float32_scores"


def float32_scores(subject: Subject) -> Verdict:
    """Fails if scores lie on a grid of 16 bits that is wide against their spread, or gives two answers one score."""
    grid = coarse_grid(subject.scores)
    if not grid:
        return passed(
            CHECK, f"{len(np.unique(subject.scores))} different scores in {len(subject.scores)}; not rounded."
        )
    step = step_of(subject.scores, grid)
    share = step / subject.spread if subject.spread > 0 else np.inf
    ties = int((subject.scores[::2] == subject.scores[1::2]).sum())
    numbers = {"quantity": "rounding_step", "value": share, "limit": ROUNDED, "unit": "spreads"}
    found = (
        f"every score is a {grid} number: they are {step:.3g} apart, {share:.2g} of the spread, and {ties} pairs tie"
    )
    if share <= ROUNDED and not ties:
        return passed(CHECK, f"{found}.", **numbers)
    message = f"{found}. Compute the head in float32: to cast its output later brings nothing back."
    return failed(CHECK, message, **numbers)
