"""Completions of many prompts as arrays, and the differences that a labelling of them shows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from onepolicy.behaviour.completions import PromptPair
from onepolicy.behaviour.metrics import Metric
from onepolicy.behaviour.similarity import similarity_matrix
from onepolicy.records.tokens import Float64

SELF_SIMILARITY, CONTENT = "self_similarity", "content"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Block:
    """Prompts that have the same number of samples; those of A come first."""

    a: int
    """samples of A"""
    values: Float64
    """[P, n, K] a number for each completion and metric"""
    similarity: Float64 | None
    """[P, n, n] 0 on the diagonal; None if either side has one sample, and so none to be like"""

    @property
    def labels(self) -> Float64:
        """[1, P, n] 1 where a completion is of B, as it was observed."""
        of_b = np.arange(self.values.shape[1]) >= self.a
        return np.broadcast_to(of_b, (1, *self.values.shape[:2])).astype(np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Similarities:
    """Means over the prompts that have two samples on both sides; NaN if there is none."""

    within_a: float
    within_b: float
    across: float
    prompts: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BehaviourTable:
    """All that is compared."""

    metrics: tuple[Metric, ...]
    """[K]"""
    blocks: tuple[Block, ...]

    @property
    def prompts(self) -> int:
        """Prompts that are compared."""
        return sum(len(block.values) for block in self.blocks)

    @property
    def share_of_b(self) -> float:
        """The share of a prompt's completions that are of B, in the mean over prompts."""
        shares = [len(block.values) * (1 - block.a / block.values.shape[1]) for block in self.blocks]
        return float(sum(shares) / self.prompts)

    @property
    def prompts_alike(self) -> int:
        """Those of which similarity is known."""
        return sum(len(block.values) for block in self.blocks if block.similarity is not None)

    @property
    def names(self) -> tuple[str, ...]:
        """[D] what `differences` returns: K metrics, and two more where similarity is known."""
        return (*(m.name for m in self.metrics), *((SELF_SIMILARITY, CONTENT) if self.prompts_alike else ()))

    @property
    def one_sided(self) -> tuple[bool, ...]:
        """[D] which of them only a positive value speaks of: content is zero for one distribution, and never below."""
        return tuple(name == CONTENT for name in self.names)

    def means(self) -> tuple[Float64, Float64]:
        """[K], [K] of A and of B: the mean over prompts of the mean over samples."""
        a = np.concatenate([block.values[:, : block.a].mean(axis=1) for block in self.blocks])
        b = np.concatenate([block.values[:, block.a :].mean(axis=1) for block in self.blocks])
        return a.mean(axis=0), b.mean(axis=0)

    def similarities(self) -> Similarities:
        """How alike the samples of a prompt are, within each side and across."""
        sums = self._similarity_sums([block.labels for block in self.blocks])[0]
        means = sums / (self.prompts_alike or math.nan)
        a, b, across = (float(x) for x in means)
        return Similarities(within_a=a, within_b=b, across=across, prompts=self.prompts_alike)

    def differences(self, labels: Sequence[Float64]) -> Float64:
        """[R, D] B minus A under R labellings: the mean over prompts.

        labels: for each block [R, P, n], 1 where a completion is said to be of B.
        A length counts in units of the prompt's own mean over both sides, which no labelling changes. The last two are
        self-similarity, B's minus A's, and content: the similarity within the sides less the one across.
        """
        parts = zip(self.blocks, labels, strict=True)
        sums = [_difference_sums(block, given, self.metrics) for block, given in parts]
        means: Float64 = np.sum(sums, axis=0) / self.prompts
        if not self.prompts_alike:
            return means
        a, b, across = self._similarity_sums(labels).T / self.prompts_alike
        return np.column_stack([means, b - a, (a + b) / 2 - across])

    def _similarity_sums(self, labels: Sequence[Float64]) -> Float64:
        """[R, 3] within A, within B and across, each summed over prompts."""
        total = np.zeros((len(labels[0]), 3))
        for block, given in zip(self.blocks, labels, strict=True):
            if block.similarity is not None:
                total += _block_similarities(block.similarity, given, block.a)
        return total


def table_of(pairs: Sequence[PromptPair], metrics: Sequence[Metric]) -> BehaviourTable:
    """The numbers of all completions. Prompts with the same numbers of samples share a block."""
    shapes: dict[tuple[int, int], list[PromptPair]] = {}
    for pair in pairs:
        shapes.setdefault((len(pair.a), len(pair.b)), []).append(pair)
    return BehaviourTable(metrics=tuple(metrics), blocks=tuple(_block(some, metrics) for some in shapes.values()))


def _block(pairs: Sequence[PromptPair], metrics: Sequence[Metric]) -> Block:
    values = [[[metric.of(one) for metric in metrics] for one in pair.both] for pair in pairs]
    alike = min(len(pairs[0].a), len(pairs[0].b)) >= 2
    return Block(
        a=len(pairs[0].a),
        values=np.array(values),
        similarity=np.array([similarity_matrix([one.token_ids for one in pair.both]) for pair in pairs])
        if alike
        else None,
    )


def _difference_sums(block: Block, labels: Float64, metrics: Sequence[Metric]) -> Float64:
    """[R, K] mean of B minus mean of A, summed over the block's prompts."""
    relative = np.array([metric.kind == "length" for metric in metrics])
    own = block.values.mean(axis=1, keepdims=True)
    values = block.values / np.where(relative & (own > 0), own, 1.0)
    a, b = block.a, block.values.shape[1] - block.a
    weights = labels * (1 / a + 1 / b) - 1 / a
    sums: Float64 = weights.reshape(len(labels), -1) @ values.reshape(-1, len(metrics))
    return sums


def _block_similarities(similarity: Float64, labels: Float64, a: int) -> Float64:
    """[R, 3] summed over the block's prompts; from quadratic forms of the labels, as each pair stands twice."""
    b = similarity.shape[1] - a
    of_b = np.matmul(labels.transpose(1, 0, 2), similarity).transpose(1, 0, 2)  # [R, P, n]
    both_b = (of_b * labels).sum(axis=(1, 2))
    one_b = of_b.sum(axis=(1, 2))
    across = one_b - both_b
    both_a = similarity.sum() - both_b - 2 * across
    return np.stack([both_a / (a * (a - 1)), both_b / (b * (b - 1)), across / (a * b)], axis=1)
