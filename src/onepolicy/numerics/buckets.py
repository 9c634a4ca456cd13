"""How far the two sides differ, by position, confidence, token class and prompt tag; and how |d| is distributed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from onepolicy.numerics.pair import Pair
from onepolicy.records.parquet import read_tags
from onepolicy.records.tables import Bin, Bucket, BucketTable
from onepolicy.records.tokens import Float64

CONFIDENCE_EDGES = (0.0, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 0.999, 1.0)
"""of the probability that the rollout policy gave to the token"""
POSITIONS = 31
"""buckets of 1, 2 to 3, 4 to 7 ... tokens; an int32 offset fits"""
CLIP_LOW, CLIP_HIGH = 0.8, 1.2
"""the range of ratios that PPO's usual clip of 0.2 leaves alone; J. Schulman et al. (2017), section 6.1"""
MOST_TAG_VALUES = 64
MOST_TAGS = 16
OTHER = "(other)"
UNNAMED = "(none named)"
_SUMS = ("tokens", "d", "abs_d", "k2", "k3")
_EXPONENT_SHIFT = 23
_EXPONENTS = 1 << 8
_CONFIDENCES = len(CONFIDENCE_EDGES) - 1
_RUN_TOKENS = 1 << 16
"""columns of this length stay in a core's cache"""
_LANES = 8
"""sums of one cell that are kept apart, a power of two: tokens that follow each other often share a cell, and an
addition to it would wait for the one before"""
_FEW_CELLS = 512
"""where that is worth it"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenClasses:
    """The class of every id of a vocabulary."""

    names: tuple[str, ...] = ("unknown",)
    of_id: npt.NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, dtype=np.uint8))
    """[V] index into `names`; an id beyond it has class 0"""

    @property
    def are_one(self) -> bool:
        """Whether no token is told from another."""
        return not len(self.of_id)

    def of(self, token_ids: npt.NDArray[np.int32]) -> npt.NDArray[np.intp]:
        """[N] -> [N] index into `names`."""
        if self.are_one:
            return np.zeros(len(token_ids), dtype=np.intp)
        known = (token_ids >= 0) & (token_ids < len(self.of_id))
        return np.where(known, self.of_id[np.where(known, token_ids, 0)], 0).astype(np.intp)


@dataclass(slots=True, kw_only=True, eq=False)
class Cells:
    """Sums in n cells. Cells of the same shape can be merged."""

    sums: Float64
    """[len(_SUMS), n]"""
    largest: Float64
    """[n] of |d|"""

    @classmethod
    def empty(cls, n: int) -> Cells:
        """n cells with nothing in them."""
        return cls(sums=np.zeros((len(_SUMS), n)), largest=np.zeros(n))

    def add(self, cells: npt.NDArray[np.intp], columns: Sequence[Float64 | None], abs_d: Float64) -> None:
        """Count tokens or rollouts into their cells; columns: as `_SUMS` says, each [N]; None stands for ones."""
        n = len(self.largest)
        lanes = _LANES if n <= _FEW_CELLS else 1
        places = cells * lanes + (np.arange(len(cells)) & (lanes - 1))
        for row, column in zip(self.sums, columns, strict=True):
            sums = np.zeros(n * lanes)
            np.add.at(sums, places, 1.0 if column is None else column)
            np.add(row, sums.reshape(n, lanes).sum(axis=1), out=row)
        above = np.flatnonzero(abs_d > self.largest.take(cells))
        np.maximum.at(self.largest, cells[above], abs_d[above])

    def column(self, name: str) -> Float64:
        """[n] one of `_SUMS`."""
        column: Float64 = self.sums[_SUMS.index(name)]
        return column

    def along(self, shape: tuple[int, ...], axis: int) -> Cells:
        """The cells of one axis; those of the others are added up."""
        others = tuple(i for i in range(len(shape)) if i != axis)
        return Cells(
            sums=np.stack([row.reshape(shape).sum(axis=others) for row in self.sums]),
            largest=self.largest.reshape(shape).max(axis=others),
        )

    def table(self, axis: str, names: Sequence[str], *, by_size: bool = False) -> BucketTable:
        """The cells that hold a token, as they are shown."""
        order = np.argsort(-self.sums[0], kind="stable") if by_size else np.arange(len(names))
        return BucketTable(axis=axis, buckets=tuple(self._bucket(names[i], i) for i in order if self.sums[0, i]))

    def _bucket(self, name: str, i: int) -> Bucket:
        tokens, d, abs_d, _, k3 = self.sums[:, i].tolist()
        return Bucket(
            name=name,
            tokens=int(tokens),
            mean_d=d / tokens,
            mean_abs_d=abs_d / tokens,
            mean_k3=k3 / tokens,
            max_abs_d=float(self.largest[i]),
        )


@dataclass(slots=True, kw_only=True, eq=False)
class Buckets:
    """Per-bucket sums of a pair of readings; `add` is the only thing that changes them."""

    classes: TokenClasses = field(default_factory=TokenClasses)
    version_of: Mapping[str, str] = field(default_factory=dict)
    """rollout id -> weight version that sampled it, where the engine named one"""
    versions: dict[str, int] = field(default_factory=dict)
    """weight version -> rollouts"""
    outside_clip: int = 0
    """tokens whose importance ratio lies outside [CLIP_LOW, CLIP_HIGH]"""
    _cells: Cells = field(init=False)
    """position x confidence x class"""
    _signs: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(2 * _EXPONENTS, dtype=np.int64))
    """counts of d by sign and binary exponent, as a float32 begins with them: first trainer higher, then lower"""
    _tags: dict[str, dict[str, Cells]] = field(default_factory=dict)
    _by_version: dict[str, Cells] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._cells = Cells.empty(POSITIONS * _CONFIDENCES * len(self.classes.names))

    def add(self, pair: Pair) -> None:
        """Take in one block."""
        positions = position_buckets_of(pair)
        classes = None if self.classes.are_one else self.classes.of(pair.rollouts.token_ids[pair.both])
        for first in range(0, len(pair.p), _RUN_TOKENS):
            run = slice(first, first + _RUN_TOKENS)
            self._add_run(pair.p[run], pair.q[run], positions[run], None if classes is None else classes[run])
        self._add_tags(pair)
        self._add_versions(pair)

    def by_confidence(self) -> Cells:
        """One cell for each interval of `CONFIDENCE_EDGES`."""
        return self._along(1)

    def tables(self) -> tuple[BucketTable, ...]:
        """By position, confidence, token class, and each tag of the prompts, language first."""
        tables = [
            self._along(0).table("position", position_names()),
            self.by_confidence().table("confidence", confidence_names()),
        ]
        if len(self.classes.of_id):
            tables.append(self._along(2).table("token class", self.classes.names, by_size=True))
        if len(self._by_version) > 1:
            tables.append(self.version_table())
        tables += [self._tag_table(tag) for tag in sorted(self._tags, key=lambda tag: (tag != "language", tag))]
        return tuple(tables)

    def version_table(self) -> BucketTable:
        """By the weight version that sampled the rollout."""
        tables = [cells.table("weight version", [name]) for name, cells in self._by_version.items()]
        return BucketTable(axis="weight version", buckets=tuple(b for table in tables for b in table.buckets))

    def histogram(self) -> tuple[Bin, ...]:
        """|d| in powers of two, the two signs apart; the bins between the first and the last that hold a token."""
        higher, lower = self._signs.reshape(2, _EXPONENTS)
        used = np.flatnonzero(higher[1:] + lower[1:]) + 1
        if not len(used):
            return ()
        return tuple(
            Bin(
                low=2.0 ** (e - 127),
                trainer_lower=int(lower[e]),
                trainer_higher=int(higher[e]),
            )
            for e in range(int(used[0]), int(used[-1]) + 1)
        )

    @property
    def equal(self) -> int:
        """Tokens on which both sides say the same (|d| below the smallest normal float32)."""
        return int(self._signs[[0, _EXPONENTS]].sum())

    def _along(self, axis: int) -> Cells:
        return self._cells.along((POSITIONS, _CONFIDENCES, len(self.classes.names)), axis)

    def _add_run(
        self,
        p: npt.NDArray[np.float32],
        q: npt.NDArray[np.float32],
        positions: npt.NDArray[np.intp],
        classes: npt.NDArray[np.intp] | None,
    ) -> None:
        d = np.subtract(q, p, dtype=np.float64)
        abs_d = np.abs(d)
        with np.errstate(over="ignore"):  # d above 709: the k3 is infinite, and said to be
            k3 = np.expm1(d) - d
        cells = positions * _CONFIDENCES + confidence_buckets(p)
        if classes is not None:
            cells = cells * len(self.classes.names) + classes
        self._cells.add(cells, (None, d, abs_d, d * d / 2, k3), abs_d)
        signed = d.astype(np.float32).view(np.uint32) >> np.uint32(_EXPONENT_SHIFT)
        np.add.at(self._signs, signed.astype(np.intp), 1)
        self.outside_clip += int(np.count_nonzero((d < np.log(CLIP_LOW)) | (d > np.log(CLIP_HIGH))))

    def _add_tags(self, pair: Pair) -> None:
        """Tags belong to rollouts, whose sums are there already."""
        texts, groups = np.unique(np.array(pair.rollouts.tags, dtype=np.str_), return_inverse=True)
        sums = [pair.sums.column(name) for name in _SUMS]
        for group, text in enumerate(texts.tolist()):
            rows = np.flatnonzero(groups == group)
            for tag, value in read_tags(pair.rollouts.rollout_ids[int(rows[0])], text).items():
                self._tag_cells(tag, value).add(
                    np.zeros(len(rows), dtype=np.intp), [column[rows] for column in sums], pair.sums.max_abs_d[rows]
                )

    def _add_versions(self, pair: Pair) -> None:
        if not self.version_of:
            return
        named = np.array([self.version_of.get(rollout_id, "") for rollout_id in pair.rollouts.rollout_ids])
        sums = [pair.sums.column(name) for name in _SUMS]
        for version in dict.fromkeys(named.tolist()):
            rows = np.flatnonzero(named == version)
            name = version or UNNAMED
            self.versions[name] = self.versions.get(name, 0) + len(rows)
            kept = name if name in self._by_version or len(self._by_version) < MOST_TAG_VALUES else OTHER
            self._by_version.setdefault(kept, Cells.empty(1)).add(
                np.zeros(len(rows), dtype=np.intp), [column[rows] for column in sums], pair.sums.max_abs_d[rows]
            )

    def _tag_cells(self, tag: str, value: str) -> Cells:
        """The cells of a tag's value; what is beyond a fixed number of them is put together, as memory is flat."""
        if tag not in self._tags and len(self._tags) >= MOST_TAGS:
            tag = OTHER
        values = self._tags.setdefault(tag, {})
        if value not in values and len(values) >= MOST_TAG_VALUES:
            value = OTHER
        return values.setdefault(value, Cells.empty(1))

    def _tag_table(self, tag: str) -> BucketTable:
        tables = [cells.table(tag, [value]) for value, cells in sorted(self._tags[tag].items())]
        return BucketTable(axis=tag, is_tag=True, buckets=tuple(b for table in tables for b in table.buckets))


def position_buckets_of(pair: Pair) -> npt.NDArray[np.intp]:
    """[M] of each token with a logprob on both sides: the bucket of its position in its rollout."""
    lengths = np.diff(pair.offsets)
    if not np.array_equal(lengths, pair.wanted):
        return position_buckets(completion_positions(pair))
    counted = position_buckets(np.arange(1, lengths.max(initial=0) + 1, dtype=np.int32))
    rows = [counted[:length] for length in lengths.tolist()]
    return np.concatenate(rows) if rows else counted


def completion_positions(pair: Pair) -> npt.NDArray[np.int32]:
    """[M] of each token with a logprob on both sides: the how manieth compared token of its rollout it is, from 1."""
    running = np.zeros(len(pair.compared) + 1, dtype=np.int32)
    np.cumsum(pair.compared, out=running[1:])
    before = running[pair.rollouts.offsets[:-1]]
    return running[1:][pair.both] - np.repeat(before, np.diff(pair.offsets))


def position_buckets(positions: npt.NDArray[np.int32]) -> npt.NDArray[np.intp]:
    """[N] positions from 1 -> [N] 0 for 1, 1 for 2 and 3, 2 for 4 to 7 ...: the exponent of a float64."""
    return (positions.astype(np.float64).view(np.int64) >> 52) - 1023


def confidence_buckets(rollout_logprobs: npt.NDArray[np.float32]) -> npt.NDArray[np.intp]:
    """[N] -> [N] index of the interval of `CONFIDENCE_EDGES`; a lower edge belongs to its interval.

    Eight comparisons take a tenth of the time of a binary search, whose branches nobody can predict.
    """
    buckets = np.zeros(len(rollout_logprobs), dtype=np.uint8)
    for edge in np.log(CONFIDENCE_EDGES[1:-1]).astype(np.float32):
        buckets += rollout_logprobs >= edge
    return buckets.astype(np.intp)


def position_names() -> list[str]:
    """1, 2 to 3, 4 to 7 ..."""
    return ["1", *(f"{1 << e:,} to {(2 << e) - 1:,}" for e in range(1, POSITIONS))]


def confidence_names() -> list[str]:
    """0 to 0.01 ..."""
    return [f"{low:g} to {high:g}" for low, high in pairwise(CONFIDENCE_EDGES)]
