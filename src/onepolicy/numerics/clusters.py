"""Sums by prompt group: what intervals are made of."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field

import numpy as np

from onepolicy.judgement.statistics import Estimate, estimate_ratio
from onepolicy.numerics.pair import Pair
from onepolicy.records.tokens import Float64

MAX_CLUSTERS = 65_536
"""prompt groups kept apart; beyond them groups share buckets by the hash of their id"""


@dataclass(slots=True, kw_only=True, eq=False)
class Clusters:
    """Tokens and gate quantity of each prompt; of identical samples of one prompt, one counts."""

    duplicates: int = 0
    _index: dict[str, int] = field(default_factory=dict)
    _sums: Float64 = field(default_factory=lambda: np.zeros((64, 2)))
    """[m, 2]: tokens, gate quantity"""
    _seen: set[tuple[str, str]] = field(default_factory=set)

    def __len__(self) -> int:
        return len(self._index)

    def add(self, pair: Pair, gate: Float64) -> None:
        """Take in a block; gate: [R] the gate quantity summed over each rollout."""
        tokens = pair.sums.column("tokens")
        for row, (prompt_id, digest) in enumerate(zip(pair.rollouts.prompt_ids, pair.digests, strict=True)):
            if (prompt_id, digest) in self._seen:
                self.duplicates += 1
                continue
            self._seen.add((prompt_id, digest))
            place = self._place(prompt_id)  # first: it may replace the array
            self._sums[place] += (tokens[row], gate[row])

    def estimate(self) -> Estimate:
        """The gate quantity per token."""
        used = self._sums[: len(self._index)]
        return estimate_ratio(sums=used[:, 1], lengths=used[:, 0])

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
