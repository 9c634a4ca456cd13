"""A fixed-size random sample of tokens that does not depend on how they came in."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from onepolicy.numerics.pair import Pair
from onepolicy.records.tokens import Float32

SIZE = 4000
_RUN_TOKENS = 1 << 16
_Keys = npt.NDArray[np.uint64]


@dataclass(slots=True, kw_only=True, eq=False)
class TokenSample:
    """The tokens with the smallest random keys. A key is a hash of seed, rollout and position.

    So every token is as likely as any other, a sample of parts merges into that of the whole, and a repeated run
    shows the same points.
    """

    size: int = SIZE
    seed: int = 0
    keys: _Keys = field(default_factory=lambda: np.zeros(0, dtype=np.uint64))
    """[n] ascending"""
    rollout: Float32 = field(default_factory=lambda: np.zeros(0, dtype=np.float32))
    """[n] logprobs"""
    trainer: Float32 = field(default_factory=lambda: np.zeros(0, dtype=np.float32))
    """[n]"""

    def add(self, pair: Pair) -> None:
        """Take in a block."""
        numbers = token_numbers(pair.rollouts.rollout_ids, np.diff(pair.offsets), seed=self.seed)
        for first in range(0, len(numbers), _RUN_TOKENS):
            run = slice(first, first + _RUN_TOKENS)
            keys = random_keys(numbers[run])
            chosen = np.flatnonzero(keys < self.keys[-1]) if len(self.keys) == self.size else np.arange(len(keys))
            if len(chosen):
                self._merge(keys[chosen], pair.p[run][chosen], pair.q[run][chosen])

    def _merge(self, keys: _Keys, rollout: Float32, trainer: Float32) -> None:
        keys = np.concatenate([self.keys, keys])
        kept = np.argsort(keys, kind="stable")[: self.size]
        self.keys = keys[kept]
        self.rollout = np.concatenate([self.rollout, rollout])[kept]
        self.trainer = np.concatenate([self.trainer, trainer])[kept]


def token_numbers(rollout_ids: Sequence[str], lengths: npt.NDArray[np.int64], *, seed: int) -> _Keys:
    """[R], [R] -> [sum of lengths] for each token a number from the seed, its rollout and its place in it."""
    hashes = [zlib.crc32(rollout_id.encode("utf-8", "backslashreplace"), seed) << 32 for rollout_id in rollout_ids]
    starts = (np.cumsum(lengths) - lengths).astype(np.uint64)
    numbers: _Keys = np.repeat(np.array(hashes, dtype=np.uint64) - starts, lengths)
    numbers += np.arange(len(numbers), dtype=np.uint64)
    return numbers


def random_keys(numbers: _Keys) -> _Keys:
    """[N] -> [N] numbers that look random: splitmix64.

    Source: S. Vigna, splitmix64.c (2015).
    """
    x: _Keys = numbers + np.uint64(1)
    x *= np.uint64(0x9E3779B97F4A7C15)
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x
