"""The sign of each rollout's advantage from recorded rewards, as GRPO has it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from onepolicy.numerics.impact.piece import NEGATIVE, NO_REWARD, POSITIVE, ZERO, Signs
from onepolicy.records.tokens import BoolArray, Float64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Advantages:
    """Of the rollouts of a run, in its order."""

    signs: Signs
    """[R]"""
    correct: BoolArray
    """[R] whether the reward is above 0"""

    @property
    def rewarded(self) -> bool:
        """Whether any group has all its rewards."""
        return bool(np.any(self.signs != NO_REWARD))

    @property
    def complete(self) -> bool:
        """Whether all groups have."""
        return bool(len(self.signs)) and bool(np.all(self.signs != NO_REWARD))


def group_advantages(rewards: Float64, groups: Sequence[str]) -> Advantages:
    """reward - mean of the group, its sign alone: a division by the group's deviation does not change it.

    Shape: [R] with NaN where there is none, [R] names. A group in which one is missing has no advantages; a group whose
    rewards are all equal, or that has one rollout, has advantages of 0.
    """
    names: dict[str, int] = {}
    index = np.array([names.setdefault(name, len(names)) for name in groups], dtype=np.int64)
    counts = np.bincount(index, minlength=len(names))
    means = np.bincount(index, weights=rewards, minlength=len(names)) / np.maximum(counts, 1)
    first = rewards[np.unique(index, return_index=True)[1]]
    differing = np.bincount(index, weights=rewards != first[index], minlength=len(names))
    above = rewards - means[index]
    signs = np.where(above > 0, POSITIVE, np.where(above < 0, NEGATIVE, ZERO))
    signs[(differing == 0)[index]] = ZERO  # the mean of equal numbers may be off by a rounding
    signs[np.isnan(means)[index]] = NO_REWARD
    return Advantages(signs=signs.astype(np.int8), correct=rewards > 0)
