"""The clipped loss of PPO and GRPO, and how the losses of tokens become the loss of a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from onepolicy.errors import AlignmentError, UsageError
from onepolicy.signal.kinds import marked
from onepolicy.signal.masks import masked_sum

Aggregation = Literal["token_mean", "sequence_mean", "constant_length"]
AGGREGATIONS: tuple[Aggregation, ...] = ("token_mean", "sequence_mean", "constant_length")


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """What a loss is divided by where a batch is handed over in micro-batches: counts over all of them, all ranks."""

    tokens: int
    """marked by the loss mask"""
    sequences: int
    """with at least one such token; or all, for a framework that divides by all"""


def clipped_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    *,
    low: float = 0.2,
    high: float = 0.2,
    dual: float | None = None,
) -> Tensor:
    """Per-token loss -min(ratio * A, clip(ratio, 1 - low, 1 + high) * A), to be minimised.

    high above low is DAPO's clip-higher. dual: the loss of a negative advantage is at most dual * |A|. Where padding
    may hold NaN or an infinity, give logprobs through `masks.selected`, or their gradient is NaN there.
    Shape: [B, T], [B, T], [B, T] or [B, 1] -> [B, T]. Raises: AlignmentError for other shapes; advantages of shape [B]
    would be those of columns. UsageError for a bound below 0, or a `dual` of at most 1.
    Source: J. Schulman et al., "Proximal Policy Optimization Algorithms" (2017), arXiv 1707.06347; D. Ye et al. (2019),
    arXiv 1912.09729, for `dual`; Q. Yu et al., "DAPO" (2025), arXiv 2503.14476, for unequal bounds.
    """
    if logprobs.shape != old_logprobs.shape:
        raise AlignmentError(f"logprobs have shape {list(logprobs.shape)} and the old {list(old_logprobs.shape)}.")
    if advantages.shape not in (logprobs.shape, (*logprobs.shape[:-1], 1)):
        raise AlignmentError(
            f"advantages have shape {list(advantages.shape)} and the logprobs {list(logprobs.shape)}. Give [B, T], or "
            "[B, 1] for one of each completion: advantages[:, None]."
        )
    if not (low >= 0 and high >= 0 and (dual is None or dual > 1)):
        raise UsageError(f"low is {low}, high {high}, dual {dual}: bounds are 0 or more, and `dual` is above 1.")
    ratio = torch.exp(logprobs - old_logprobs)
    loss = torch.maximum(-ratio * advantages, -ratio.clamp(1 - low, 1 + high) * advantages)
    if dual is None:
        return loss
    return torch.where(advantages < 0, torch.minimum(loss, -dual * advantages), loss)


def aggregated(
    losses: Tensor,
    loss_mask: Tensor,
    *,
    how: Aggregation,
    whole: Whole | None = None,
    length: int | None = None,
) -> Tensor:
    """The loss of a batch, or this micro-batch's summand of it.

    token_mean: sum over tokens / tokens; every token weighs the same (DAPO, TRL "dapo", verl "token-mean").
    sequence_mean: mean over sequences of the mean over a sequence's tokens; a token of a short one weighs more (GRPO,
    TRL "grpo", verl "seq-mean-token-mean"). constant_length: sum over tokens / (sequences * length), whatever lengths
    there are (Dr. GRPO, TRL "dr_grpo", verl "seq-mean-token-sum-norm"; with a length of 1, verl "seq-mean-token-sum").
    Completions without a marked token count as none, unless `whole` counts them. Nothing marked: 0, with gradient 0.
    whole: the counts of the batch that this is a part of; without it, this is all of it. The summands of all parts then
    add up to the loss, whatever the parts are.
    Shape: [B, T], [B, T] -> []. Raises: AlignmentError for other shapes; UsageError for a mask that holds something
    else than 0 and 1, and if `length` is needed and absent.
    Source: DAPO, equation 8 and section 3.3; Dr. GRPO, section 3.
    """
    if losses.ndim != 2:
        raise AlignmentError(f"losses have shape {list(losses.shape)}; they are [B, T].")
    mask = marked(loss_mask)
    sums, counts = masked_sum(losses, mask, dim=1), mask.sum(dim=1)
    all_of = whole or Whole(tokens=int(counts.sum()), sequences=int((counts > 0).sum()))
    if how == "token_mean":
        return sums.sum() / max(all_of.tokens, 1)
    if how == "sequence_mean":
        return (sums / counts.clamp(min=1)).sum() / max(all_of.sequences, 1)
    if how != "constant_length":
        raise UsageError(f"there is no aggregation {how!r}. Aggregations: {', '.join(AGGREGATIONS)}.")
    if length is None or not length >= 1:
        raise UsageError("constant_length needs a length of 1 or more: the longest completion that is allowed.")
    return sums.sum() / (max(all_of.sequences, 1) * length)
