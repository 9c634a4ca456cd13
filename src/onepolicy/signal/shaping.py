"""Rewards for length that do not jump: a jump teaches the policy to stand one token before it."""

from __future__ import annotations

import torch
from torch import Tensor

from onepolicy.errors import UsageError
from onepolicy.signal.kinds import floating


def soft_overlong(lengths: Tensor, *, limit: int, buffer: int) -> Tensor:
    """To be added to the reward: 0 up to limit - buffer tokens, then linear down to -1 at the limit and beyond.

    Shape: [B] -> [B] float. Unit: reward. Raises: UsageError unless 0 < buffer <= limit.
    Source: Q. Yu et al., "DAPO" (2025), arXiv 2503.14476, equation 13.
    """
    if not 0 < buffer <= limit:
        raise UsageError(f"a buffer of {buffer} tokens before a limit of {limit}: it must be 1 to the limit.")
    return ((limit - buffer - floating(lengths)) / buffer).clamp(-1.0, 0.0)


def length_band(lengths: Tensor, *, low: int, high: int, decay: int) -> Tensor:
    """To multiply the reward with: 1 from `low` to `high` tokens, linear down to 0 over `decay` tokens on either side.

    Shape: [B] -> [B] float. Raises: UsageError unless 0 <= low <= high and decay > 0.
    """
    if not 0 <= low <= high or not decay >= 1:
        raise UsageError(f"a band from {low} to {high} with a decay of {decay}: 0 <= low <= high and decay >= 1.")
    found = floating(lengths)
    outside = torch.maximum(low - found, found - high).clamp(min=0.0)
    return (1.0 - outside / decay).clamp(min=0.0)
