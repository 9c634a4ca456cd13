"""Full logits of one sequence against those of a base run: a digest, and sums that add up over sequences."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from onepolicy.errors import EngineError
from onepolicy.numerics.ulp import Bits, is_nan, ulp_distance, values_of_bits
from onepolicy.records.tokens import Float64, IntArray

_ENTRIES = 1 << 22
"""logits that are looked at together: 32 MiB of float64"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Logits:
    """The full logits of one sequence, as bits."""

    bits: Bits
    """[T, V]"""
    dtype: str
    """float32, bfloat16 or float16"""

    def digest(self) -> str:
        """SHA-256 of dtype, shape and values, in hex."""
        rows, columns = self.bits.shape
        sha = hashlib.sha256(f"{self.dtype}[{rows},{columns}]\n".encode())
        for block in _blocks(self.bits):
            sha.update(np.ascontiguousarray(block.astype(block.dtype.newbyteorder("<"), copy=False)).data)
        return sha.hexdigest()

    def refuse_nan(self, where: str) -> None:
        """Raises: EngineError if a logit is NaN, which has no distance to anything."""
        for start, block in zip(_starts(self.bits), _blocks(self.bits), strict=True):
            found = np.argwhere(is_nan(block, self.dtype))
            if len(found):
                row, column = found[0]
                raise EngineError(
                    f"{where}: the logit of token {column} at position {start + row} is NaN ({len(found)} among the "
                    "positions around it). Mend the model first; there is nothing to compare."
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstLogit:
    """Where two logits are farthest apart in units in the last place."""

    sequence: str
    position: int
    token_id: int
    base: float
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitDifference:
    """Logits against the base run's, over some sequences. `d` is of the logprobs of the sequences' own tokens."""

    logits: int = 0
    equal: int = 0
    """bit for bit"""
    tokens: int = 0
    sum_abs_d: float = 0.0
    max_abs_d: float = 0.0
    max_ulp: int = 0
    worst: WorstLogit | None = None

    def plus(self, other: LogitDifference) -> LogitDifference:
        """Both together."""
        return LogitDifference(
            logits=self.logits + other.logits,
            equal=self.equal + other.equal,
            tokens=self.tokens + other.tokens,
            sum_abs_d=self.sum_abs_d + other.sum_abs_d,
            max_abs_d=farthest([self.max_abs_d, other.max_abs_d]),
            max_ulp=max(self.max_ulp, other.max_ulp),
            worst=other.worst if other.max_ulp > self.max_ulp else self.worst,
        )


def farthest(distances: Iterable[float]) -> float:
    """The largest; NaN if one is, as it says of nothing how far it is."""
    return float(np.max(list(distances)))


def logit_difference(base: Logits, found: Logits, token_ids: IntArray, *, sequence: str) -> LogitDifference:
    """How far the logits of one sequence are from the base run's.

    Shape: [T, V], [T, V], [T]; row i predicts token i + 1, so there are T - 1 logprobs. NaN is refused before.
    Raises: EngineError if shape or dtype differ.
    """
    if (base.bits.shape, base.dtype) != (found.bits.shape, found.dtype):
        raise EngineError(
            f"sequence {sequence}: logits {found.dtype} {list(found.bits.shape)}, and the base run has {base.dtype} "
            f"{list(base.bits.shape)}. Return the full vocabulary in the dtype of one process."
        )
    total = LogitDifference()
    for start, p, q in zip(_starts(base.bits), _blocks(base.bits), _blocks(found.bits), strict=True):
        part = _difference(p, q, sequence=sequence, start=start, dtype=base.dtype)
        after = token_ids[start + 1 : start + 1 + len(p)]
        d = _distance(_logprobs(p, base.dtype, after, where=q), _logprobs(q, found.dtype, after, where=p))
        tokens = LogitDifference(tokens=len(d), sum_abs_d=float(d.sum()), max_abs_d=float(d.max(initial=0.0)))
        total = total.plus(part).plus(tokens)
    return total


def _difference(p: Bits, q: Bits, *, sequence: str, start: int, dtype: str) -> LogitDifference:
    equal = int(np.count_nonzero(p == q))
    if equal == p.size:
        return LogitDifference(logits=p.size, equal=equal)
    ulp = ulp_distance(p, q)
    row, column = np.unravel_index(int(ulp.argmax()), ulp.shape)
    worst = WorstLogit(
        sequence=sequence,
        position=start + int(row),
        token_id=int(column),
        base=float(values_of_bits(p[row, column : column + 1], dtype)[0]),
        value=float(values_of_bits(q[row, column : column + 1], dtype)[0]),
    )
    return LogitDifference(logits=p.size, equal=equal, max_ulp=int(ulp[row, column]), worst=worst)


def _logprobs(bits: Bits, dtype: str, after: IntArray, *, where: Bits) -> Float64:
    """[n] logprobs of the tokens that follow; 0 for rows that equal those of `where`, whose difference is 0 anyway."""
    rows = np.arange(len(after))
    out = np.zeros(len(after))
    unlike = rows[(bits[: len(after)] != where[: len(after)]).any(axis=1)]
    if len(unlike):
        logits = values_of_bits(bits[unlike], dtype).astype(np.float64)
        logits -= logits.max(axis=1, keepdims=True)
        chosen = logits[np.arange(len(unlike)), after[unlike]]
        out[unlike] = chosen - np.log(np.exp(logits).sum(axis=1))
    return out


def _distance(p: Float64, q: Float64) -> Float64:
    """|d|; 0 where both say that the token is impossible. Shape: [n], [n] -> [n]."""
    with np.errstate(invalid="ignore"):
        return np.where(p == q, 0.0, np.abs(q - p))


def _step(bits: Bits) -> int:
    return max(1, _ENTRIES // max(int(bits.shape[1]), 1))


def _starts(bits: Bits) -> range:
    return range(0, bits.shape[0], _step(bits))


def _blocks(bits: Bits) -> Iterator[Bits]:
    return (bits[start : start + _step(bits)] for start in _starts(bits))
