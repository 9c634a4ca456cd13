"""Sums by prompt group under names: what a mean with an interval is made of."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from onepolicy.judgement.statistics import t_quantile
from onepolicy.numerics.clusters import MAX_CLUSTERS
from onepolicy.numerics.pair import Pair
from onepolicy.records.impact import Mean
from onepolicy.records.tokens import Float64

_TAIL = 0.025
"""on each side of a 95 % interval"""


class GroupSums:
    """Named sums of each prompt group; identical token sequences share a group, whatever their prompt ids say."""

    def __init__(self, names: Sequence[str]) -> None:
        self._column = {name: i for i, name in enumerate(names)}
        self._sums = np.zeros((64, len(names)))
        self._index: dict[str, int] = {}
        self._seen: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._index)

    def places(self, pair: Pair) -> npt.NDArray[np.int64]:
        """[R] the group of each rollout of a block; of one without a token to compare, no group is made: -1."""
        places = np.full(len(pair.digests), -1, dtype=np.int64)
        for row in np.flatnonzero(np.diff(pair.offsets)).tolist():
            digest = pair.digests[row]
            if digest not in self._seen:
                self._seen[digest] = self._place(pair.rollouts.prompt_ids[row])
            places[row] = self._seen[digest]
        return places

    def add(self, places: npt.NDArray[np.int64], values: Mapping[str, Float64]) -> None:
        """Take in rollouts. Shape: [R], and [R] under each name."""
        for name, of_rollout in values.items():
            np.add.at(self._sums[:, self._column[name]], places, of_rollout)

    def total(self, name: str) -> float:
        """The sum over all groups."""
        return float(self._sums[:, self._column[name]].sum())

    def mean(self, name: str, *, per: str) -> Mean | None:
        """sum(name) / sum(per) with its 95 % interval over groups; None if there is nothing to divide by."""
        sums, weights = self._sums[:, self._column[name]], self._sums[:, self._column[per]]
        return mean_over_groups(sums[weights > 0], weights[weights > 0])

    def _place(self, prompt_id: str) -> int:
        index = self._index.get(prompt_id)
        if index is not None:
            return index
        if len(self._index) >= MAX_CLUSTERS:
            return zlib.crc32(prompt_id.encode()) % MAX_CLUSTERS
        index = self._index[prompt_id] = len(self._index)
        if index >= len(self._sums):
            self._sums = np.concatenate([self._sums, np.zeros_like(self._sums)])
        return index


def mean_over_groups(sums: Float64, weights: Float64) -> Mean | None:
    """sum(sums) / sum(weights) with r -+ t s, s the linearised error of a ratio, t of Student with m - 1 degrees.

    Shape: [m], [m] of groups with a weight above 0. None without a group; without an interval for one group.
    """
    count = len(weights)
    if not count:
        return None
    value = float(sums.sum() / weights.sum())
    if count < 2 or not math.isfinite(value):
        return Mean(value=value)
    residual = sums - value * weights
    error = float(math.sqrt(count / (count - 1) * np.square(residual).sum()) / weights.sum())
    reach = t_quantile(count - 1, _TAIL) * error
    return Mean(value=value, low=value - reach, high=value + reach)
