"""Ragged sequences as one rectangle, with the mask that says what is padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from onepolicy.records.tokens import IntArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PaddedBatch:
    """B sequences in T columns."""

    input_ids: Tensor
    """[B, T] int64"""
    attention_mask: Tensor
    """[B, T] int64, 0 on padding"""
    starts: list[int]
    """[B] the column of each sequence's first token"""

    def columns(self, row: int, positions: IntArray) -> IntArray:
        """Columns of a sequence's positions. Shape: [N] -> [N]."""
        return positions + self.starts[row]


def padded(
    sequences: Sequence[IntArray],
    *,
    side: Literal["left", "right"],
    pad_id: int,
    device: torch.device,
    starts: Sequence[int] | None = None,
) -> PaddedBatch:
    """The batch, as wide as its longest sequence: sequences of equal length, or one alone, get no padding.

    starts: [B] the column of each first token, instead of a side.
    """
    begins = [0] * len(sequences) if starts is None else list(starts)
    width = max(start + len(ids) for start, ids in zip(begins, sequences, strict=True))
    input_ids = torch.full((len(sequences), width), pad_id, dtype=torch.int64)
    attention_mask = torch.zeros_like(input_ids)
    if starts is None and side == "left":
        begins = [width - len(ids) for ids in sequences]
    for row, (ids, start) in enumerate(zip(sequences, begins, strict=True)):
        input_ids[row, start : start + len(ids)] = torch.from_numpy(ids.astype("int64"))
        attention_mask[row, start : start + len(ids)] = 1
    return PaddedBatch(input_ids=input_ids.to(device), attention_mask=attention_mask.to(device), starts=begins)
