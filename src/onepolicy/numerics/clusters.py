"""Sums by prompt group: what intervals are made of."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field

import numpy as np

from onepolicy.judgement.limits import ALPHA, GATE_TOKENS
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
    _sums: Float64 = field(default_factory=lambda: np.zeros((64, 5)))
    """[m, 5]: tokens, importance ratio, gate quantity; tokens and gate quantity with long rollouts weighted down"""
    _worst: Float64 = field(default_factory=lambda: np.zeros(64))
    """[m] largest mean k3 of a rollout"""
    _seen: dict[str, int] = field(default_factory=dict)
    """digest -> cluster"""

    @classmethod
    def from_sums(cls, sums: Float64, worst: Float64) -> Clusters:
        """Groups that were summed elsewhere; those without a token are none. Shape: [m, 5], [m]."""
        used = sums[:, 0] > 0
        index = {str(place): row for row, place in enumerate(np.flatnonzero(used))}
        return cls(_index=index, _sums=sums[used], _worst=worst[used])

    def __len__(self) -> int:
        return len(self._index)

    def add(self, pair: Pair, gate: Float64) -> None:
        """Take in a block; gate: [R] the gate quantity summed over each rollout."""
        tokens, ratio = pair.sums.column("tokens"), pair.sums.column("ratio")
        k3 = pair.sums.column("k3") / np.maximum(tokens, 1)
        weights = np.minimum(1.0, GATE_TOKENS / np.maximum(tokens, 1))
        sums = np.stack([tokens, ratio, gate, weights * tokens, weights * gate], axis=1)
        for row, (prompt_id, digest) in enumerate(zip(pair.rollouts.prompt_ids, pair.digests, strict=True)):
            if not tokens[row]:
                continue  # what has no token to compare is no evidence, and its prompt none of the clusters
            self.duplicates += digest in self._seen
            if digest not in self._seen:
                self._seen[digest] = self._place(prompt_id)
            place = self._seen[digest]
            self._sums[place] += sums[row]
            self._worst[place] = max(self._worst[place], k3[row])

    def bad(self, limit: float) -> int:
        """How many prompts have a rollout whose mean k3 exceeds the limit."""
        return int(np.count_nonzero(self._worst[: len(self._index)] > limit))

    def gate_on_these_tokens(self) -> Estimate:
        """The gate quantity per token, each token counting the same."""
        return self._estimate(2, per=0)

    def gate(self, *, upper_alpha: float = ALPHA) -> Estimate:
        """The same where no rollout weighs more than one of `GATE_TOKENS` tokens.

        A few long rollouts otherwise decide alone, and where long ones are the worse ones the bound passes what sits on
        the limit more often (benchmarks/interval.py).
        """
        return self._estimate(4, per=3, upper_alpha=upper_alpha)

    def ratio(self) -> Estimate:
        """The importance ratio per token. Unweighted: a weight by length depends on what was sampled, and the mean of
        the ratio is one only without it.
        """
        return self._estimate(1, per=0)

    def _estimate(self, column: int, *, per: int, upper_alpha: float = ALPHA) -> Estimate:
        used = self._sums[: len(self._index)]
        return estimate_ratio(sums=used[:, column], lengths=used[:, per], upper_alpha=upper_alpha)

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
