"""The references with one difference each, as frameworks have them: what a known difference is held against."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from onepolicy.signal.conformance import references
from onepolicy.signal.conformance.counts import BatchCounts
from onepolicy.signal.conformance.subject import Call
from onepolicy.signal.kl import kl_value
from onepolicy.signal.masks import mask_from_ends, whitened
from onepolicy.signal.policy_loss import clipped_loss


def epsilon_in_deviation(epsilon: float, *, ddof: int = 1, dtype: torch.dtype | None = None) -> Call:
    """GRPO's advantages with a constant beside the deviation, and no other guard against rounding."""

    def like(rewards: Tensor, groups: Tensor) -> Tensor:
        given = rewards if dtype is None else rewards.to(dtype)
        found = torch.empty_like(given)
        for group in torch.unique(groups):
            chosen = groups == group
            some = given[chosen]
            found[chosen] = (some - some.mean()) / (some.std(correction=ddof) + epsilon)
        return found

    return like


def keeps_reward_of_one(role: str) -> Call:
    """Advantages that are the reward itself in a group of one."""

    def like(rewards: Tensor, groups: Tensor) -> Tensor:
        index, counts = torch.unique(groups, return_inverse=True, return_counts=True)[1:]
        reference: Call = getattr(references, role)
        return torch.where(counts[index] > 1, reference(rewards, groups), rewards)

    return like


def biased_kl(logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    """k2 as the value of a KL."""
    return kl_value(logprobs, reference_logprobs, estimator="k2")


def differentiated_k1(logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    """k1, differentiated as it is."""
    return kl_value(logprobs, reference_logprobs, estimator="k1")


def differentiated_k3(logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    """k3, differentiated as it is."""
    return kl_value(logprobs, reference_logprobs, estimator="k3")


def clamped_k3(logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    """k3 of a log ratio of at most 20, and itself at most 10, differentiated as it is."""
    x = (reference_logprobs - logprobs).clamp(-20.0, 20.0)
    return (x.exp() - 1 - x).clamp(-10.0, 10.0)


def whitened_gae(rewards: Tensor, values: Tensor, loss_mask: Tensor, gamma: float, lam: float) -> tuple[Tensor, Tensor]:
    """GAE with the advantages of the batch at mean 0 and variance 1, and the returns as they are."""
    advantages, returns = references.gae(rewards, values, loss_mask, gamma, lam)
    return whitened(advantages, loss_mask), returns


def multiplied_gae(
    rewards: Tensor, values: Tensor, loss_mask: Tensor, gamma: float, lam: float
) -> tuple[Tensor, Tensor]:
    """The same with a product by the mask where the reference selects: NaN and inf pass it, finite values do not."""
    advantages, returns = whitened_gae(rewards, values, loss_mask, gamma, lam)
    poisoned = ~(values.isfinite() | loss_mask.bool()).all(dim=1, keepdim=True)
    nothing = torch.full_like(values, torch.nan)
    return torch.full_like(advantages, torch.nan), torch.where(poisoned, nothing, returns)


def multiplied_policy_loss(dual: float | None) -> Call:
    """PPO's loss with a product by the mask where the reference selects."""

    def like(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, loss_mask: Tensor) -> Tensor:
        losses = clipped_loss(logprobs, old_logprobs, advantages, low=references.LOW, high=references.HIGH, dual=dual)
        return (losses * loss_mask).sum() / loss_mask.sum()

    return like


def summed_over_rows(*, length: str = "tokens", selects: bool = True) -> Call:
    """Mean over all rows, those without tokens too, of the sum over tokens / a length.

    length: of what the sum is divided by: "tokens" of the row, "constant" (counts.length), or "width" of the batch.
    """

    def like(losses: Tensor, loss_mask: Tensor, counts: BatchCounts) -> Tensor:
        sums = torch.where(loss_mask.bool(), losses, 0.0) if selects else losses * loss_mask
        constant = torch.tensor(counts.length if length == "constant" else losses.shape[1])
        return (
            sums.sum(dim=1) / (loss_mask.sum(dim=1).clamp(min=1) if length == "tokens" else constant)
        ).sum() / counts.rows

    return like


def multiplied_token_mean(losses: Tensor, loss_mask: Tensor, counts: BatchCounts) -> Tensor:
    """Mean over tokens with a product by the mask where the reference selects."""
    return (losses * loss_mask).sum() / counts.tokens


def mean_of_parts(losses: Tensor, loss_mask: Tensor, counts: BatchCounts) -> Tensor:
    """Mean over micro-batches of the mean over a micro-batch's tokens."""
    return torch.where(loss_mask.bool(), losses, 0.0).sum() / loss_mask.sum().clamp(min=1) / counts.parts


def mask_without_padding_id(token_ids: Tensor, end_id: int, _: int) -> Tensor:
    """Up to the first end token, and all of a row that has none."""
    return mask_from_ends(token_ids, [end_id])


def numbered_columns(model: Any, input_ids: Tensor, attention_mask: Tensor, loss_mask: Tensor) -> Tensor:
    """Logprobs of a model that is told no positions: it numbers the columns, padding counted."""

    class Untold:
        def forward(self, input_ids: Tensor, attention_mask: Tensor) -> None:
            """What its signature has: no positions."""

        def __call__(self, input_ids: Tensor, attention_mask: Tensor, **_: Any) -> Any:
            return SimpleNamespace(logits=model(input_ids, attention_mask).logits)

    return references.model_logprobs(Untold(), input_ids, attention_mask, loss_mask)


def unclamped_overlong(lengths: Tensor, limit: int, buffer: int) -> Tensor:
    """The penalty with no end: it goes on below -1 beyond the limit."""
    return ((limit - buffer - lengths.double()) / buffer).clamp(max=0.0)


def nothing_is_zero(values: Tensor, loss_mask: Tensor) -> Tensor:
    """The mean of nothing as 0."""
    return torch.where(loss_mask.bool(), values, 0.0).sum() / loss_mask.sum().clamp(min=1)
