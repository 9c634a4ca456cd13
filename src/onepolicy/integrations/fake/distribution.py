"""Full distributions for each row of logits, under one meaning."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from onepolicy.records.protocol import Meaning
from onepolicy.records.tokens import Float64, IntArray


class Distributions:
    """The distributions of R rows of logits under a meaning; what is derived from them is computed once."""

    def __init__(self, logits: Float64, meaning: Meaning) -> None:
        processed = logits if meaning.is_raw else _processed(logits, meaning)
        self.logprobs = _log_softmax(processed)
        """[R, V], -inf outside the kept set"""

    @cached_property
    def order(self) -> IntArray:
        """[R, V] ids, most likely first; equal ones by id."""
        return np.argsort(-self.logprobs, axis=1, kind="stable").astype(np.int32)

    @cached_property
    def top1(self) -> IntArray:
        """[R] the most likely id."""
        best: IntArray = self.logprobs.argmax(axis=1).astype(np.int32)
        return best

    @cached_property
    def cumulative(self) -> Float64:
        """[R, V] probabilities summed along the ids; exactly 1 from the last possible id on."""
        total = np.exp(self.logprobs).cumsum(axis=1)
        share: Float64 = total / total[:, -1:]
        return share

    def drawn(self, row: int, uniform: float, *, greedy: bool, barred: Sequence[int] = ()) -> int:
        """The id that a uniform number in [0, 1) draws from a row; the most likely one if greedy; none of `barred`."""
        if barred:
            logprobs = self.logprobs[row].copy()
            logprobs[list(barred)] = -np.inf
            total = np.exp(logprobs).cumsum()
            return int(logprobs.argmax() if greedy else (total / total[-1]).searchsorted(uniform, side="right"))
        return int(self.top1[row] if greedy else self.cumulative[row].searchsorted(uniform, side="right"))

    @cached_property
    def entropy(self) -> Float64:
        """[R] nats."""
        return -self._mean_of(self._finite)

    @cached_property
    def varentropy(self) -> Float64:
        """[R] variance of the logprob, in nats squared."""
        return self._mean_of((self._finite + self.entropy[:, None]) ** 2)

    @property
    def _finite(self) -> Float64:
        return np.where(np.isfinite(self.logprobs), self.logprobs, 0.0)

    def _mean_of(self, values: Float64) -> Float64:
        mean: Float64 = (np.exp(self.logprobs) * values).sum(axis=1)
        return mean


def _log_softmax(logits: Float64) -> Float64:
    shifted = logits - logits.max(axis=1, keepdims=True)
    normalised: Float64 = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return normalised


def _processed(logits: Float64, meaning: Meaning) -> Float64:
    """Temperature, then top_k, top_p and min_p; -inf outside the kept set."""
    scaled = logits / meaning.temperature
    order = np.argsort(-scaled, axis=1, kind="stable")
    kept = np.empty(scaled.shape, dtype=np.bool_)
    ranked = np.exp(_log_softmax(np.take_along_axis(scaled, order, axis=1)))
    if meaning.top_k:
        ranked[:, meaning.top_k :] = 0.0
        ranked /= ranked.sum(axis=1, keepdims=True)
    before = ranked.cumsum(axis=1) - ranked
    wanted = (ranked > 0.0) & (before < meaning.top_p) & (ranked >= meaning.min_p * ranked[:, :1])
    np.put_along_axis(kept, order, wanted, axis=1)
    return np.where(kept, scaled, -np.inf)
