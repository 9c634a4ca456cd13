"""Many recorded rollouts as flat arrays, as they are compared and written."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from onepolicy.dumps.contract import Column, RecordedRollout, Refusal
from onepolicy.records.blocks import ReadingBlock, RolloutBlock
from onepolicy.records.tokens import Float64, digest_of_ids

BLOCK_TOKENS = 1 << 20
"""rollouts are put together until they have about this many tokens"""
NO_STEP = -1
NO_ID = -1
"""a token whose id the file does not hold"""
UNKNOWN_LAG = -1
OTHER_VERSION = 8
"""between versions that are named otherwise and are no whole numbers"""
LONGEST_NUMBER = 18
"""digits of a version that is counted; an int64 holds them"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecordedBlock:
    """R rollouts of a dump; rollout r owns entries offsets[r] to offsets[r + 1] of `rollouts`, `rollout`, `trainer`."""

    rollouts: RolloutBlock
    rollout: ReadingBlock | None
    """None if the file does not hold this side"""
    trainer: ReadingBlock | None
    steps: npt.NDArray[np.int64]
    """[R] of the training, `NO_STEP` where the file does not say"""
    weight_versions: Sequence[str]
    """[R] of the policy that sampled; empty where the file does not say"""
    trainer_versions: Sequence[str]
    """[R] of the weights that the trainer scored with"""
    rewards: Float64
    """[R] NaN where there is none"""
    advantages: Float64
    """[R] NaN where there is none"""
    refused: tuple[Refusal, ...] = ()
    """rows read beside these R that are not used"""

    @property
    def read(self) -> int:
        """Rows of the file: used and refused."""
        return len(self.rollouts.rollout_ids) + len(self.refused)


def in_blocks(rows: Iterable[RecordedRollout | Refusal]) -> Iterator[RecordedBlock]:
    """Rows -> blocks, in order; memory for one block. All rows of a file have the same sides."""
    kept: list[RecordedRollout] = []
    refused: list[Refusal] = []
    tokens = 0
    for row in rows:
        if isinstance(row, Refusal):
            refused.append(row)
            continue
        if tokens >= BLOCK_TOKENS or (kept and _sides(kept[-1]) != _sides(row)):
            yield _block(kept, refused)
            kept, refused, tokens = [], [], 0
        kept.append(row)
        tokens += len(row.rollout.token_ids)
    if kept or refused:
        yield _block(kept, refused)


def _sides(row: RecordedRollout) -> tuple[bool, bool]:
    return row.rollout_logprobs is not None, row.trainer_logprobs is not None


def _block(rows: list[RecordedRollout], refused: list[Refusal]) -> RecordedBlock:
    lengths = [len(row.rollout.token_ids) for row in rows]
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)
    ids = [row.rollout.rollout_id for row in rows]
    digests = [row.rollout.digest for row in rows]

    def reading(columns: list[Column | None]) -> ReadingBlock | None:
        there = [column for column in columns if column is not None]
        if len(there) < len(rows) or not rows:
            return None
        return ReadingBlock(
            rollout_ids=ids,
            digests=digests,
            offsets=offsets,
            logprobs=_joined([column.logprobs for column in there], np.float32),
            states=_joined([column.states for column in there], np.uint8),
            top1=None,
        )

    return RecordedBlock(
        rollouts=RolloutBlock(
            rollout_ids=ids,
            prompt_ids=[row.rollout.prompt_id for row in rows],
            tags=[json.dumps(row.rollout.tags, sort_keys=True, ensure_ascii=False) for row in rows],
            offsets=offsets,
            token_ids=_joined([row.rollout.token_ids for row in rows], np.int32),
            sampled=_joined([row.rollout.sampled for row in rows], np.bool_),
            loss_mask=_joined([row.rollout.loss_mask for row in rows], np.bool_),
        ),
        rollout=reading([row.rollout_logprobs for row in rows]),
        trainer=reading([row.trainer_logprobs for row in rows]),
        steps=np.array([NO_STEP if row.step is None else row.step for row in rows], dtype=np.int64),
        weight_versions=[row.weight_version for row in rows],
        trainer_versions=[row.trainer_version for row in rows],
        rewards=_numbers([row.rollout.reward for row in rows]),
        advantages=_numbers([row.advantage for row in rows]),
        refused=tuple(refused),
    )


def lags_of(block: RecordedBlock) -> npt.NDArray[np.int64]:
    """[R] versions between the weights that sampled and those that scored; -1 where one of the two is not known.

    0 for the same version, whatever it is called. Whole numbers differ by their distance, in either direction; names
    that differ count as `OTHER_VERSION` apart.
    """
    pairs = zip(block.weight_versions, block.trainer_versions, strict=True)
    return np.array([_lag(sampled, scored) for sampled, scored in pairs], dtype=np.int64)


def _lag(sampled: str, scored: str) -> int:
    if not (sampled and scored):
        return UNKNOWN_LAG
    if sampled == scored:
        return 0
    if any(not (version.isdecimal() and len(version) <= LONGEST_NUMBER) for version in (sampled, scored)):
        return OTHER_VERSION
    return abs(int(scored) - int(sampled))


def block_digests(block: RecordedBlock) -> list[str]:
    """[R] digest of each rollout's ids; of its numbers where the file has no ids, so that a copy is known as one."""
    bounds = block.rollouts.offsets.tolist()
    ids = block.rollouts.token_ids
    side = block.rollout if block.rollout is not None else block.trainer
    known = [digest_of_ids(ids[a:b]) for a, b in pairwise(bounds)] if side is None else side.digests
    return [
        digest if b > a and ids[a] != NO_ID else _digest_of_numbers(block, a, b)
        for digest, (a, b) in zip(known, pairwise(bounds), strict=True)
    ]


def _digest_of_numbers(block: RecordedBlock, start: int, end: int) -> str:
    sides = [side.logprobs[start:end].view(np.int32) for side in (block.rollout, block.trainer) if side is not None]
    return digest_of_ids(np.concatenate([np.empty(0, dtype=np.int32), *sides]))


def prompt_digest(token_ids: npt.NDArray[np.integer], sampled: npt.NDArray[np.bool_]) -> str:
    """A name for the prompt, if the file has none: the digest of the ids before the first sampled one."""
    first = int(np.argmax(sampled)) if sampled.any() else len(token_ids)
    return digest_of_ids(token_ids[:first])


def _joined(parts: Sequence[npt.NDArray[Any]], dtype: npt.DTypeLike) -> Any:
    return np.concatenate(parts).astype(dtype, copy=False) if parts else np.empty(0, dtype=dtype)


def _numbers(values: list[float | None]) -> Float64:
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)
