"""Several sequences in one row, kept apart by position ids that start again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from onepolicy.engines.contract import ScoreInput, Wanted
from onepolicy.errors import EngineError
from onepolicy.integrations.transformers.score import ScoreSettings
from onepolicy.records.reading import ReadingRow
from onepolicy.records.tokens import IntArray, TokenState, digest_of_ids


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Packed:
    """B sequences one after the other."""

    items: tuple[ScoreInput, ...]
    joined: ScoreInput
    """all of them as one sequence of T tokens"""
    positions: Tensor
    """[1, T] within each sequence"""
    offsets: tuple[int, ...]
    """[B + 1] of the sequences among the T tokens; what lies past the model's length was left out"""

    def rows(self, row: ReadingRow) -> list[ReadingRow]:
        """The row of the joined sequence, taken apart."""
        parts = zip(self.items, self.offsets, self.offsets[1:], strict=False)
        return [_part(row, item, start, end) for item, start, end in parts]


def packed(batch: Sequence[ScoreInput], wanted: Wanted, settings: ScoreSettings) -> Packed:
    """The batch as one sequence. Raises: EngineError for what cannot be told of joined sequences."""
    if wanted.statistics or wanted.top or any(item.report is not None for item in batch):
        raise EngineError(
            "packed=true: sequences in one row give logprobs alone; no statistics, no top lists and no logprobs of the "
            "other side's tokens. Leave these out, or score without packed."
        )
    kept = [item.token_ids[: settings.max_length] for item in batch]
    offsets = np.concatenate([[0], np.cumsum([len(ids) for ids in kept])]).tolist()
    asked = np.concatenate([item.wanted[: len(ids)] for item, ids in zip(batch, kept, strict=True)])
    asked[offsets[:-1]] = False  # what stands before a first token here is of another sequence
    joined = ScoreInput(
        rollout_id=f"{batch[0].rollout_id} and {len(batch) - 1} more",
        token_ids=np.concatenate(kept).astype(np.int32),
        wanted=asked,
        keep_top=False,
    )
    positions = np.concatenate([np.arange(len(ids)) for ids in kept])
    return Packed(
        items=tuple(batch),
        joined=joined,
        positions=torch.from_numpy(positions)[None],
        offsets=tuple(offsets),
    )


def _part(row: ReadingRow, item: ScoreInput, start: int, end: int) -> ReadingRow:
    part, length = slice(start, end), end - start
    states = np.where(item.wanted, TokenState.TRUNCATED, TokenState.MASKED).astype(np.uint8)
    logprobs = np.full(len(states), np.nan, dtype=np.float32)
    states[:length], logprobs[:length] = row.states[part], row.logprobs[part]
    if item.wanted[0]:
        states[0] = TokenState.ABSENT
    return ReadingRow(
        rollout_id=item.rollout_id,
        digest=digest_of_ids(item.token_ids),
        logprobs=logprobs,
        states=states,
        top1=None if row.top1 is None else _top1(row.top1[part], len(states)),
    )


def _top1(ids: IntArray, length: int) -> IntArray:
    found = np.full(length, -1, dtype=np.int32)
    found[: len(ids)] = ids
    return found
