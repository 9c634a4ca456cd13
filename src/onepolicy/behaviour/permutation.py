"""Which differences are more than chance: labels permuted within prompts, and the largest of all metrics."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from onepolicy.behaviour.table import BehaviourTable, Block
from onepolicy.records.tokens import Float64

FAMILY_ALPHA = 0.05
"""how often some metric may alarm on one and the same configuration"""
PERMUTATIONS = 9_999
SEED = 0
_AT_ONCE = 1_000_000
"""labels in memory"""
_TIE = 1e-9
"""of a standardised difference: the same sum in another order"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tested:
    """Each metric's difference against what labels at random give."""

    names: tuple[str, ...]
    """[D]"""
    difference: Float64
    """[D] B minus A"""
    spread: Float64
    """[D] root mean square of the differences under permuted labels; 0 if no labelling shows one"""
    p: Float64
    """[D] adjusted for the family; 1 where the spread is 0"""
    critical: float
    """how many spreads a difference must have to be beyond chance"""


def permutation_test(table: BehaviourTable, *, permutations: int = PERMUTATIONS, seed: int = SEED) -> Tested:
    """Adjusted p-values of all metrics, by the largest standardised difference of each labelling (max-T).

    If both configurations are one, the labels within a prompt are exchangeable, whatever the distribution: the share of
    labellings, the observed one included, whose largest difference is at least a metric's own is an exact p-value, and
    some metric falls below 5 % in at most 5 % of comparisons. The labellings follow from the seed alone.
    Source: P. Westfall and S. Young, "Resampling-Based Multiple Testing" (1993); one is added to both counts as in
    B. Phipson and G. Smyth, "Permutation P-values Should Never Be Zero" (2010).
    """
    observed = table.differences([block.labels for block in table.blocks])
    drawn = [table.differences(labels) for labels in _labellings(table.blocks, permutations, seed)]
    every = np.concatenate([observed, *drawn])
    spread = np.sqrt((every**2).mean(axis=0))
    varies = spread > 1e-12  # what is the same in all completions of a prompt leaves rounding
    scaled = every[:, varies] / spread[varies]
    sizes = np.where(np.array(table.one_sided)[varies], scaled, np.abs(scaled))
    largest = sizes.max(axis=1) if varies.any() else np.zeros(len(every))
    p = np.ones(len(spread))
    p[varies] = (largest[:, None] >= sizes[0] - _TIE).mean(axis=0)
    return Tested(
        names=table.names,
        difference=observed[0],
        spread=np.where(varies, spread, 0.0),
        p=p,
        critical=float(np.quantile(largest, 1 - FAMILY_ALPHA, method="higher")),
    )


def _labellings(blocks: tuple[Block, ...], count: int, seed: int) -> Iterator[list[Float64]]:
    rng = np.random.Generator(np.random.PCG64(seed))
    completions = sum(block.values.shape[0] * block.values.shape[1] for block in blocks)
    size = max(1, _AT_ONCE // completions)
    for start in range(0, count, size):
        yield [_labelling(rng, block, min(size, count - start)) for block in blocks]


def _labelling(rng: np.random.Generator, block: Block, count: int) -> Float64:
    """[R, P, n] labels of B on as many completions of each prompt as B has, all choices equally likely."""
    ranks = rng.random((count, *block.values.shape[:2])).argsort(axis=2)
    return (ranks >= block.a).astype(np.float64)
