"""What a function that aggregates losses is told of the batch that its micro-batch is a part of."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCounts:
    """Counts over all micro-batches of one optimizer step."""

    tokens: int
    """marked by the loss mask"""
    sequences: int
    """with at least one marked token"""
    rows: int
    """all, with or without a marked token"""
    parts: int
    """micro-batches"""
    length: int
    """tokens of the longest completion that is allowed"""
