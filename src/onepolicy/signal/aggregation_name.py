"""Which aggregation a framework's function is, from what it does: names and defaults change between releases."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from onepolicy.errors import UsageError
from onepolicy.signal.masks import mask_from_lengths
from onepolicy.signal.policy_loss import Aggregation, aggregated

Aggregate = Callable[[Tensor, Tensor], Tensor]
"""[B, T] losses and [B, T] loss mask -> [] loss of the batch"""
_BATCHES = ((2, 5, 12, 50), (3, 3, 20, 40))
"""two batches of as many completions and another number of tokens, which tells a mean over tokens from a constant"""
_WIDTH = 64


def token_weights(aggregate: Aggregate, loss_mask: Tensor) -> Tensor:
    """What each token's loss counts for in the loss of the batch.

    Shape: [B, T] -> [B, T] float64. Raises: UsageError if the function gives no single number.
    """
    found = _weights(aggregate, loss_mask)
    if found is None:
        raise UsageError("the function gives no single number; the loss of a batch is a tensor of shape [].")
    return found


def aggregation_of(aggregate: Aggregate) -> Aggregation | None:
    """The aggregation of `signal.policy_loss` that weighs tokens as this function does; None if none does.

    None, too, for one that gives no single number, or one that nothing depends on. What it raises itself is not caught.
    One that divides by a number which is not the batch's (that of all ranks, say) is none, or `constant_length` if the
    number is fixed. Weights of padding count too: a function that lets padding in is none.
    """
    masks = [mask_from_lengths(torch.tensor(lengths), width=_WIDTH) for lengths in _BATCHES]
    found = [_weights(aggregate, mask) for mask in masks]
    theirs = [weights for weights in found if weights is not None and bool(weights.any())]
    if len(theirs) < len(masks):
        return None
    if all(_agree(ours, weights) for ours, weights in zip(_ours("token_mean", masks), theirs, strict=True)):
        return "token_mean"
    if all(_agree(ours, weights) for ours, weights in zip(_ours("sequence_mean", masks), theirs, strict=True)):
        return "sequence_mean"
    constant = theirs[0][0, 0]
    is_constant = all(_agree(mask * constant, weights) for mask, weights in zip(masks, theirs, strict=True))
    return "constant_length" if is_constant and constant > 0 else None


def _weights(aggregate: Aggregate, loss_mask: Tensor) -> Tensor | None:
    losses = torch.ones(loss_mask.shape, dtype=torch.float64, device=loss_mask.device, requires_grad=True)
    with torch.enable_grad():
        loss: object = aggregate(losses, loss_mask.clone())  # what it does to its mask is not seen by the next
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        return None
    if not loss.requires_grad:
        return torch.zeros_like(losses)
    return torch.autograd.grad(loss, losses, materialize_grads=True)[0]


def _ours(how: Aggregation, masks: list[Tensor]) -> list[Tensor]:
    return [token_weights(lambda losses, mask: aggregated(losses, mask, how=how), mask) for mask in masks]


def _agree(ours: Tensor, theirs: Tensor) -> bool:
    return bool(torch.allclose(ours.double(), theirs, rtol=1e-4, atol=1e-12))
