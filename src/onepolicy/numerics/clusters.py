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
    """Tokens and gate quantity of each prompt.

    Identical token sequences share a cluster, whatever their prompt ids say: they are no independent evidence. Each
    still counts for what it is, a draw: leaving it out would make likely completions rare and bias the mean.
    """

    duplicates: int = 0
    """rollouts whose token sequence came before"""
    _index: dict[str, int] = field(default_factory=dict)
    _sums: Float64 = field(default_factory=lambda: np.zeros((64, 3)))
    """[m, 3]: tokens, gate quantity, importance ratio"""
    _worst: Float64 = field(default_factory=lambda: np.zeros(64))
    """[m] largest mean k3 of a rollout"""
    _seen: dict[str, int] = field(default_factory=dict)
    """digest -> cluster"""

    def __len__(self) -> int:
        return len(self._index)

    def add(self, pair: Pair, gate: Float64) -> None:
        """Take in a block; gate: [R] the gate quantity summed over each rollout."""
        k3 = pair.sums.column("k3") / np.maximum(pair.sums.column("tokens"), 1)
        tokens, ratio = pair.sums.column("tokens"), pair.sums.column("ratio")
        for row, (prompt_id, digest) in enumerate(zip(pair.rollouts.prompt_ids, pair.digests, strict=True)):
            self.duplicates += digest in self._seen
            place = self._seen.setdefault(digest, self._place(prompt_id))
            self._sums[place] += (tokens[row], gate[row], ratio[row])
            self._worst[place] = max(self._worst[place], k3[row])

    def bad(self, limit: float) -> int:
        """How many prompts have a rollout whose mean k3 exceeds the limit."""
        return int(np.count_nonzero(self._worst[: len(self._index)] > limit))

    def gate(self) -> Estimate:
        """The gate quantity per token."""
        return self._estimate(1)

    def ratio(self) -> Estimate:
        """The importance ratio per token."""
        return self._estimate(2)

    def _estimate(self, column: int) -> Estimate:
        used = self._sums[: len(self._index)]
        return estimate_ratio(sums=used[:, column], lengths=used[:, 0])

    def _place(self, prompt_id: str) -> int:
        index = self._index.get(prompt_id)
        if index is not None:
            return index
        if len(self._index) >= MAX_CLUSTERS:
            return zlib.crc32(prompt_id.encode()) % MAX_CLUSTERS
        index = self._index[prompt_id] = len(self._index)
        if index >= len(self._sums):
            self._sums = np.concatenate([self._sums, np.zeros_like(self._sums)])
            self._worst = np.concatenate([self._worst, np.zeros_like(self._worst)])
        return index
