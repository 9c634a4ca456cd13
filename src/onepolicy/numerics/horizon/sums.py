"""Sums by prompt group that all statements about a long horizon are made of, gathered block by block in flat memory."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from onepolicy.judgement.limits import MIN_CLUSTERS
from onepolicy.numerics.metrics import log_ratio
from onepolicy.numerics.pair import Pair, per_rollout
from onepolicy.records.tokens import BoolArray, Float64

Int64 = npt.NDArray[np.int64]

BLOCK = 32
"""tokens whose mean is one value: what neighbours share, which is little, is inside it"""
MAX_GROUPS = 4096
"""prompt groups kept apart; beyond them groups share a place by the hash of their id, which is a larger group"""
POSITION_BUCKETS = 8
VARIABLES = ("d", "excess")
"""excess is exp(d) - 1 = d + k3: of a token that the rollout policy sampled its mean is none, whatever came before"""
GROUP_SUMS = (
    "rollouts",
    "tokens",
    "d",
    "k3",
    "excess",
    "with_blocks",
    "blocks",
    "blocks_squared",
    *(f"{variable}_{what}" for variable in VARIABLES for what in ("sum", "square", "between")),
)
"""with_blocks: rollouts with at least one block of 32 tokens; blocks_squared: the sum of the squares of their numbers;
sum and square: of the blocks' means; between: the squared sum of a rollout's means over their number, added up"""
POSITION_SUMS = ("tokens", "k3", "abs_d", "d")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cohort:
    """The rollouts of at least `length` tokens, at their first `length` ones, so that each position has the same."""

    length: int
    """a multiple of 32; 0: no cohort"""
    band: tuple[float, float] = (0.5, 2.0)
    """of the sequence ratio"""

    @property
    def edges(self) -> Int64:
        """[P + 1] of the buckets by position, multiples of 32."""
        blocks = self.length // BLOCK
        count = min(POSITION_BUCKETS, blocks)
        return np.unique(np.round(np.linspace(0, blocks, count + 1)).astype(np.int64)) * BLOCK


@dataclass(slots=True, kw_only=True, eq=False)
class HorizonSums:
    """What `add` gathered. Identical token sequences share a group, whatever their prompt ids say."""

    cohort: Cohort
    wanted: int = 0
    """tokens that were to be compared"""
    cohort_rollouts: int = 0
    cohort_outside: int = 0
    """of these, those whose sequence ratio over the cohort's length is outside the band"""
    _places: dict[str, int] = field(default_factory=dict)
    _seen: dict[str, int] = field(default_factory=dict)
    _groups: Float64 = field(default_factory=lambda: np.zeros((MAX_GROUPS, len(GROUP_SUMS))))
    _positions: Float64 = field(init=False)

    def __post_init__(self) -> None:
        self._positions = np.zeros((MAX_GROUPS, max(len(self.cohort.edges) - 1, 0), len(POSITION_SUMS)))

    @property
    def groups(self) -> Float64:
        """[m, len(GROUP_SUMS)] of the groups that have a token."""
        return self._groups[self._used]

    @property
    def positions(self) -> Float64:
        """[m, P, len(POSITION_SUMS)] of the same groups: the cohort's tokens by their position."""
        return self._positions[self._used]

    def add(self, pair: Pair) -> None:
        """Take in one block of rollouts."""
        d = log_ratio(trainer_logprobs=pair.q, rollout_logprobs=pair.p).astype(np.float64, copy=False)
        places = self._places_of(pair)
        np.add.at(self._groups, places, rollout_sums(d, pair.offsets))
        self.wanted += int(pair.wanted.sum())
        if self.cohort.length:
            self._add_positions(pair, d, places)

    @property
    def _used(self) -> BoolArray:
        used: BoolArray = self._groups[:, GROUP_SUMS.index("tokens")] > 0
        return used

    def _places_of(self, pair: Pair) -> Int64:
        found = np.empty(len(pair.digests), dtype=np.int64)
        for row, (prompt_id, digest) in enumerate(zip(pair.rollouts.prompt_ids, pair.digests, strict=True)):
            if digest not in self._seen:
                self._seen[digest] = self._place(prompt_id)
            found[row] = self._seen[digest]
        return found

    def _place(self, prompt_id: str) -> int:
        if prompt_id not in self._places:
            count = len(self._places)
            self._places[prompt_id] = count if count < MAX_GROUPS else zlib.crc32(prompt_id.encode()) % MAX_GROUPS
        return self._places[prompt_id]

    def _add_positions(self, pair: Pair, d: Float64, places: Int64) -> None:
        position = positions_of(pair)
        row = np.repeat(np.arange(len(pair.wanted)), np.diff(pair.offsets))
        inside = (pair.wanted[row] >= self.cohort.length) & (position < self.cohort.length)
        d, row, position = d[inside], row[inside], position[inside]
        bucket = np.searchsorted(self.cohort.edges, position, side="right") - 1
        shape = (len(pair.wanted), self._positions.shape[1])
        for column, values in enumerate((np.ones(len(d)), _k3(d), np.abs(d), d)):
            flat = np.bincount(row * shape[1] + bucket, weights=values, minlength=shape[0] * shape[1])
            np.add.at(self._positions[:, :, column], places, flat.reshape(shape))
        sums = np.bincount(row, weights=d, minlength=shape[0]).astype(np.float64)
        self._count_outside(sums, pair.wanted >= self.cohort.length)

    def _count_outside(self, sums: Float64, of_cohort: BoolArray) -> None:
        low, high = np.log(self.cohort.band)
        self.cohort_rollouts += int(np.count_nonzero(of_cohort))
        self.cohort_outside += int(np.count_nonzero(of_cohort & ((sums < low) | (sums > high))))


def rollout_sums(d: Float64, offsets: Int64) -> Float64:
    """Sums over each rollout's tokens, and over the means of its blocks of 32; the last few tokens are in no block.

    Shape: [M], [R + 1] -> [R, len(GROUP_SUMS)].
    """
    tokens, blocks = np.diff(offsets), np.diff(offsets) // BLOCK
    with np.errstate(over="ignore"):  # exp(d) beyond float64 is infinite, and said to be by what uses it
        excess = np.expm1(d)
    columns = {
        "rollouts": (tokens > 0).astype(np.float64),
        "tokens": tokens,
        "d": per_segment(d, offsets),
        "k3": per_segment(_k3(d), offsets),
        "excess": per_segment(excess, offsets),
        "with_blocks": (blocks > 0).astype(np.float64),
        "blocks": blocks,
        "blocks_squared": blocks.astype(np.float64) ** 2,
        **_block_sums("d", d, offsets),
        **_block_sums("excess", excess, offsets),
    }
    return np.stack([columns[name] for name in GROUP_SUMS], axis=1).astype(np.float64)


def block_means(values: Float64, offsets: Int64) -> tuple[Float64, Int64]:
    """Means of 32 tokens each, one after the other from a rollout's first.

    Shape: [M], [R + 1] -> [B], and [R + 1] where each rollout's means begin.
    """
    counts = np.diff(offsets) // BLOCK
    bounds = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    inside = np.arange(bounds[-1]) - np.repeat(bounds[:-1], counts)
    first = np.repeat(offsets[:-1], counts) + inside * BLOCK
    means: Float64 = values[first[:, None] + np.arange(BLOCK)].mean(axis=1)
    return means, bounds


def per_segment(values: Float64, offsets: Int64) -> Float64:
    """Sum of each segment; 0 for an empty one. Shape: [M], [R + 1] -> [R]."""
    sums = np.zeros(len(offsets) - 1)
    filled = np.diff(offsets) > 0
    if filled.any():  # reduceat takes no empty range
        sums[filled] = np.add.reduceat(values, offsets[:-1][filled])
    return sums


def positions_of(pair: Pair) -> Int64:
    """[M] which of its rollout's tokens that are to be compared a token is, from 0; tokens without a logprob count."""
    before = np.cumsum(pair.compared) - 1
    first = np.concatenate([[0], np.cumsum(per_rollout(pair.compared, pair.rollouts.offsets))])[:-1]
    place: Int64 = before[pair.both] - np.repeat(first, np.diff(pair.offsets))
    return place


def measured_length(lengths: Iterable[tuple[str, int]]) -> int:
    """The length that half of the prompts, and at least 12, have a rollout of; a multiple of 32, 0 if there is none.

    lengths: prompt id and tokens to compare of each rollout.
    """
    longest: dict[str, int] = {}
    for prompt_id, length in lengths:
        longest[prompt_id] = max(longest.get(prompt_id, 0), length)
    needed = max(MIN_CLUSTERS, (len(longest) + 1) // 2)
    if len(longest) < needed:
        return 0
    return sorted(longest.values(), reverse=True)[needed - 1] // BLOCK * BLOCK


def _block_sums(variable: str, values: Float64, offsets: Int64) -> dict[str, Float64]:
    means, bounds = block_means(values, offsets)
    sums = per_segment(means, bounds)
    blocks = np.maximum(np.diff(bounds), 1)
    with np.errstate(over="ignore"):
        found = (sums, per_segment(means * means, bounds), sums * sums / blocks)
    return dict(zip((f"{variable}_{what}" for what in ("sum", "square", "between")), found, strict=True))


def _k3(d: Float64) -> Float64:
    with np.errstate(over="ignore"):
        k3: Float64 = np.expm1(d) - d
    return k3
