"""One training step as one vector of fixed length: what is added up first, what is merged by maximum last."""

from __future__ import annotations

import math
from dataclasses import fields
from itertools import accumulate

import numpy as np

from onepolicy.numerics.steps.summary import BY_MAXIMUM, StepSummary
from onepolicy.records.tokens import Float64

EXTRAS = ("outliers", "masked", "odd_masks", "failed")
"""rollouts beyond the limit or with an invalid value; of these, those left out of the loss; entries of a mask that are
neither 0 nor 1; ranks on which the monitor failed"""


def _shapes() -> dict[str, tuple[int, ...]]:
    """Sums, extras, maxima, each with its shape."""
    empty = StepSummary(step=0)
    arrays = {f.name: getattr(empty, f.name).shape for f in fields(StepSummary) if f.name != "step"}
    sums = {name: shape for name, shape in arrays.items() if name not in BY_MAXIMUM}
    return sums | {"extras": (len(EXTRAS),)} | {name: arrays[name] for name in BY_MAXIMUM}


SHAPES = _shapes()
_ENDS = list(accumulate(math.prod(shape) for shape in SHAPES.values()))
SLICES = {name: slice(end - math.prod(SHAPES[name]), end) for name, end in zip(SHAPES, _ENDS, strict=True)}
LENGTH = _ENDS[-1]
"""float64 numbers of a step"""
SUMS = SLICES["extras"].stop
"""of these the first, which are merged by adding"""

FAILED = SLICES["extras"].start + EXTRAS.index("failed")
"""the place where a rank says that its monitor has failed"""


def merged(vectors: Float64) -> Float64:
    """The steps of all ranks as one; the order of ranks is that of the rows. Shape: [R, LENGTH] -> [LENGTH]."""
    return np.concatenate([vectors[:, :SUMS].sum(axis=0), vectors[:, SUMS:].max(axis=0)])


def step_summary(vector: Float64, *, step: int) -> StepSummary:
    """What a vector holds. Shape: [LENGTH]."""
    arrays = {name: vector[SLICES[name]].reshape(shape).copy() for name, shape in SHAPES.items() if name != "extras"}
    return StepSummary(step=step, **arrays)


def extras(vector: Float64) -> dict[str, int]:
    """The counts beside the summary, by name. Shape: [LENGTH]."""
    return {name: int(value) for name, value in zip(EXTRAS, vector[SLICES["extras"]].tolist(), strict=True)}
