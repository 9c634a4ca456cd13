"""Which aggregation a framework's function is, from what it does: names and defaults change between releases."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from onepolicy.signal.masks import mask_from_lengths
from onepolicy.signal.policy_loss import Aggregation, aggregated

Aggregate = Callable[[Tensor, Tensor], Tensor]
"""[B, T] losses and [B, T] loss mask -> [] loss of the batch"""
_BATCHES = ((2, 5, 12, 50), (3, 3, 20, 40))
"""two batches of as many completions and another number of tokens, which tells a mean over tokens from a constant"""
_WIDTH = 64


def token_weights(aggregate: Aggregate, loss_mask: Tensor) -> Tensor:
    """What each token's loss counts for in the loss of the batch. Shape: [B, T] -> [B, T] float64."""
    losses = torch.ones(loss_mask.shape, dtype=torch.float64, device=loss_mask.device, requires_grad=True)
    (found,) = torch.autograd.grad(aggregate(losses, loss_mask), losses)
    return found


def aggregation_of(aggregate: Aggregate) -> Aggregation | None:
    """The aggregation of `signal.policy_loss` that weighs tokens as this function does; None if none does.

    One that divides by a number which is not the batch's (that of all ranks, say) is none, or `constant_length` if the
    number is fixed. Weights of padding count too: a function that lets padding in is none.
    """
    masks = [mask_from_lengths(torch.tensor(lengths), width=_WIDTH) for lengths in _BATCHES]
    theirs = [token_weights(aggregate, mask) for mask in masks]
    if all(_agree(ours, weights) for ours, weights in zip(_ours("token_mean", masks), theirs, strict=True)):
        return "token_mean"
    if all(_agree(ours, weights) for ours, weights in zip(_ours("sequence_mean", masks), theirs, strict=True)):
        return "sequence_mean"
    constant = theirs[0][0, 0]
    return "constant_length" if all(_agree(m * constant, w) for m, w in zip(masks, theirs, strict=True)) else None


def _ours(how: Aggregation, masks: list[Tensor]) -> list[Tensor]:
    return [token_weights(lambda losses, mask: aggregated(losses, mask, how=how), mask) for mask in masks]


def _agree(ours: Tensor, theirs: Tensor) -> bool:
    return bool(torch.allclose(ours.double(), theirs, rtol=1e-4, atol=1e-12))
