"""What batches are planted with."""

from __future__ import annotations

import torch
from torch import Tensor

MASK = torch.tensor([[1, 1, 1, 1, 0], [1, 1, 0, 0, 0], [1, 1, 1, 1, 1]])
"""completions of unequal lengths"""
WITH_EMPTY = torch.tensor([[1, 1, 1, 1, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]])
JUNK = (torch.nan, torch.inf, -torch.inf, 1e4)


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    """Random numbers, the same in every run. float64."""
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def logprobs_like(mask: Tensor, *, seed: int = 0) -> Tensor:
    """Logprobs as of sampled tokens, -3 to 0. Shape of the mask, float64."""
    return -3.0 * torch.rand(mask.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def under_mask(values: Tensor, mask: Tensor, junk: tuple[float, ...] = JUNK) -> Tensor:
    """The values, with junk in turn wherever the mask leaves out."""
    out = (mask == 0).nonzero()
    planted = values.clone()
    for i, place in enumerate(out.tolist()):
        planted[tuple(place)] = junk[i % len(junk)]
    return planted
