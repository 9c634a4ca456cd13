"""The fake engine's "language model": a table of logits, one row for each kind of context."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from onepolicy.integrations.fake.vocabulary import END, VOCAB_SIZE
from onepolicy.records.tokens import Float64, IntArray

NOTHING = VOCAB_SIZE
"""stands for the ids before the first token"""

_ROWS_PER_KIND = 64
_NOISE_VARIANTS = 32
_LETTERS = "etaoinshrdlucmfwygpbvkjxqz"
"""from the most to the least frequent in English"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Weights:
    """Logits of the next token as a fixed function of the last three ids (two if there is no noise)."""

    logits: Float64
    """[R, 259]"""
    pair_row: IntArray
    """[260, 260] first row for the last two ids"""
    pair_variant: IntArray
    """[260, 260] with `id_variant`, which of the noisy variants of that row"""
    id_variant: IntArray
    """[260] of the id before these two"""
    variants: int
    hash: str
    """SHA-256 of the logits without noise"""

    def row_after(self, first: int, second: int, third: int) -> int:
        """The row of `logits` for the token that follows these three ids."""
        variant = (self.id_variant[first] + self.pair_variant[second, third]) % self.variants
        return int(self.pair_row[second, third] + variant)

    def rows_of(self, token_ids: IntArray) -> IntArray:
        """For each token, the row of `logits` that its predecessors select. Shape: [T] -> [T]."""
        count = len(token_ids)
        padded = np.concatenate([np.full(3, NOTHING, dtype=np.int32), token_ids])
        first, second, third = padded[:count], padded[1 : count + 1], padded[2 : count + 2]
        variant = (self.id_variant[first] + self.pair_variant[second, third]) % self.variants
        rows: IntArray = self.pair_row[second, third] + variant
        return rows


def make_weights(*, seed: int, noise: float, salt: str) -> Weights:
    """The weights for a seed. `noise` is a standard deviation in nats; `salt` selects a draw of it."""
    rng = np.random.Generator(np.random.PCG64(seed))
    clean = _clean_logits(rng)
    shape = (NOTHING + 1, NOTHING + 1)
    row = rng.integers(_ROWS_PER_KIND, size=shape) + _ROWS_PER_KIND * _kind_of_id()[None, :]
    variants = _NOISE_VARIANTS if noise else 1
    return Weights(
        logits=_with_noise(clean, noise=noise, seed=_noise_seed(seed, salt)) if noise else clean,
        pair_row=(row * variants).astype(np.int32),
        pair_variant=rng.integers(_NOISE_VARIANTS, size=shape, dtype=np.int32),
        id_variant=rng.integers(_NOISE_VARIANTS, size=NOTHING + 1, dtype=np.int32),
        variants=variants,
        hash=hashlib.sha256(clean.tobytes()).hexdigest(),
    )


def _noise_seed(seed: int, salt: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}:{salt}".encode()).digest()[:8], "big")


def _with_noise(clean: Float64, *, noise: float, seed: int) -> Float64:
    rng = np.random.Generator(np.random.PCG64(seed))
    noisy = clean[:, None, :] + noise * rng.standard_normal((len(clean), _NOISE_VARIANTS, VOCAB_SIZE))
    return noisy.reshape(-1, VOCAB_SIZE)


def _clean_logits(rng: np.random.Generator) -> Float64:
    """[4 kinds x 64, 259]: letters, spaces and stops where English has them, an exact chance to end."""
    kinds = [_after_letter(), _after_space(), _after_mark(), _after_anything_else()]
    base = np.log(np.repeat(np.stack([shares for shares, _ in kinds]), _ROWS_PER_KIND, axis=0))
    logits = base + 0.8 * rng.standard_normal(base.shape)
    logits[:, END] = -np.inf
    end = np.repeat([end for _, end in kinds], _ROWS_PER_KIND)
    logits[:, END] = np.log(np.exp(logits).sum(axis=1)) + np.log(end / (1.0 - end))
    return logits


def _kind_of_id() -> IntArray:
    """[260] after which kind of token we are: 0 a letter, 1 a space, 2 a mark, 3 anything else."""
    kind = np.full(NOTHING + 1, 3, dtype=np.int32)
    kind[list(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")] = 0
    kind[ord(" ")] = 1
    kind[list(b".,!?")] = 2
    return kind


def _after_letter() -> tuple[Float64, float]:
    return _shares({_LETTERS: 0.75, " ": 0.18, ".,": 0.05}), 0.03


def _after_space() -> tuple[Float64, float]:
    return _shares({_LETTERS: 0.95, _LETTERS.upper(): 0.03}), 0.005


def _after_mark() -> tuple[Float64, float]:
    return _shares({" ": 0.7, "\n": 0.1, _LETTERS: 0.1}), 0.08


def _after_anything_else() -> tuple[Float64, float]:
    return _shares({_LETTERS.upper(): 0.8, _LETTERS: 0.15}), 0.005


def _shares(groups: dict[str, float]) -> Float64:
    """[259] relative shares: each group's, falling as 1/rank within it; a trace for all other tokens."""
    share = np.full(VOCAB_SIZE, 1e-5)
    for characters, total in groups.items():
        ranked = 1.0 / np.arange(1, len(characters) + 1)
        share[list(characters.encode())] = total * ranked / ranked.sum()
    return share
