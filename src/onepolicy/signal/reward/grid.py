"""Were scores rounded to 16 bits before they were handed over?"""

from __future__ import annotations

import numpy as np

from onepolicy.records.tokens import Float64

FEWEST = 6
"""scores: so many lie on a grid of 16 bits by chance less often than once in 2^48"""


def coarse_grid(scores: Float64) -> str:
    """`bfloat16` or `float16` if every score is one of its numbers, and not all are quarters; empty otherwise.

    Quarters and whole numbers are what a judge gives, and say nothing of a precision. Shape: [N].
    """
    if len(scores) < FEWEST or not np.isfinite(scores).all() or (scores * 4 == np.round(scores * 4)).all():
        return ""
    if np.array_equal(as_bfloat16(scores), scores):
        return "bfloat16"
    with np.errstate(over="ignore"):
        return "float16" if np.array_equal(scores.astype(np.float16).astype(np.float64), scores) else ""


def as_bfloat16(scores: Float64) -> Float64:
    """Each with the lower 16 bits of its float32 cut off; unchanged where it is a bfloat16. Shape: [N] -> [N]."""
    bits = scores.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
    return bits.view(np.float32).astype(np.float64)


def step_of(scores: Float64, grid: str) -> float:
    """Distance of two neighbouring numbers of a grid at the largest score. Unit: that of the score."""
    digits = 7 if grid == "bfloat16" else 10
    largest = float(np.abs(scores).max())
    return 0.0 if largest == 0 else float(2.0 ** (np.floor(np.log2(largest)) - digits))
