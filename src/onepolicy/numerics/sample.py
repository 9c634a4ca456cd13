"""A fixed-size random sample of tokens that does not depend on how they came in."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from onepolicy.numerics.pair import Pair
from onepolicy.records.tokens import Float32

SIZE = 4000
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
        for row, rollout_id in enumerate(pair.rollouts.rollout_ids):
            part = pair.part(row)
            keys = random_keys(rollout_id, part.stop - part.start, seed=self.seed)
            if len(self.keys) == self.size:
                chosen = np.flatnonzero(keys < self.keys[-1])
                if not len(chosen):
                    continue
                self._merge(keys[chosen], pair.p[part][chosen], pair.q[part][chosen])
            else:
                self._merge(keys, pair.p[part], pair.q[part])

    def _merge(self, keys: _Keys, rollout: Float32, trainer: Float32) -> None:
        keys = np.concatenate([self.keys, keys])
        kept = np.argsort(keys, kind="stable")[: self.size]
        self.keys = keys[kept]
        self.rollout = np.concatenate([self.rollout, rollout])[kept]
        self.trainer = np.concatenate([self.trainer, trainer])[kept]


def random_keys(rollout_id: str, count: int, *, seed: int) -> _Keys:
    """[count] keys of the tokens of one rollout: splitmix64 of its id and their number.

    Source: S. Vigna, splitmix64.c (2015).
    """
    start = (zlib.crc32(rollout_id.encode("utf-8", "backslashreplace"), seed) << 32) & 0xFFFFFFFFFFFFFFFF
    x = (np.arange(count, dtype=np.uint64) + np.uint64(start) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    keys: _Keys = x ^ (x >> np.uint64(31))
    return keys
