"""Every role filled by our own functions: what a subject is compared with, and a subject itself."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from onepolicy.logprobs.compute import compute_logprobs
from onepolicy.signal import advantages as of_groups
from onepolicy.signal import kl as of_kl
from onepolicy.signal import masks, shaping
from onepolicy.signal.conformance.counts import BatchCounts
from onepolicy.signal.policy_loss import Whole, aggregated, clipped_loss

LOW = HIGH = 0.2
DUAL = 3.0
Pair = tuple[Tensor, Tensor]


def token_logprobs(logits: Tensor, token_ids: Tensor, temperature: float) -> Tensor:
    """Logprob of each token under softmax(logits / temperature). [B, T, V], [B, T] -> [B, T], nats."""
    return (logits / temperature).log_softmax(dim=-1).gather(-1, token_ids[..., None])[..., 0]


def processed_logprobs(logits: Tensor, token_ids: Tensor, temperature: float, top_p: float) -> Tensor:
    """The same among the smallest set of tokens whose probability is top_p, -inf outside it. Shape: as above."""
    tempered = logits / temperature
    ordered, order = tempered.sort(dim=-1, descending=True)
    before = ordered.softmax(dim=-1).cumsum(dim=-1) - ordered.softmax(dim=-1)
    out = torch.zeros_like(before, dtype=torch.bool).scatter(-1, order, before >= top_p)
    return token_logprobs(tempered.masked_fill(out, -torch.inf), token_ids, 1.0)


def sequence_logprobs(logprobs: Tensor, loss_mask: Tensor) -> Tensor:
    """Logprob of each completion. [B, T], [B, T] -> [B], nats."""
    return masks.sequence_logprobs(logprobs, loss_mask)


def completion_logprobs(logits: Tensor, input_ids: Tensor, attention_mask: Tensor, lengths: Tensor) -> Tensor:
    """Logprobs of the last `lengths` real tokens of each row, from the left; 0 after them.

    Shape: [B, S, V], [B, S], [B, S], [B] -> [B, longest], nats.
    """
    found = logits.new_zeros(len(lengths), int(lengths.max()))
    for row, (real, length) in enumerate(zip(attention_mask.bool(), lengths.tolist(), strict=True)):
        columns = real.nonzero()[:, 0]
        places, sources = columns[len(columns) - length :], columns[len(columns) - length - 1 : len(columns) - 1]
        chosen = token_logprobs(logits[row, sources], input_ids[row, places], 1.0)
        found[row, :length] = chosen
    return found


def model_logprobs(model: Any, input_ids: Tensor, attention_mask: Tensor, loss_mask: Tensor) -> Tensor:
    """Logprob of token i at entry i where the mask marks it, 0 elsewhere. [B, S] each -> [B, S], nats."""
    found = compute_logprobs(model, input_ids=input_ids, attention_mask=attention_mask, completion_mask=loss_mask)
    logprobs = torch.zeros(input_ids.shape, dtype=found.report.logprobs.dtype)
    logprobs[found.rows, found.positions] = found.report.logprobs
    return logprobs


def completion_mask(token_ids: Tensor, end_id: int, pad_id: int) -> Tensor:
    """True up to and with the first end token; where there is none, up to the padding. [B, T] -> [B, T]."""
    mask = masks.mask_from_ends(token_ids, [end_id])
    if pad_id == end_id:
        return mask
    later = (token_ids != pad_id).flip(1).cumsum(dim=1).flip(1)
    return mask & (later > 0)


def masked_mean(values: Tensor, loss_mask: Tensor) -> Tensor:
    """Mean of the marked values. [B, T], [B, T] -> []."""
    return masks.masked_mean(values, loss_mask)


def whiten(values: Tensor, loss_mask: Tensor) -> Tensor:
    """Marked values at mean 0 and variance 1. [B, T], [B, T] -> [B, T]."""
    return masks.whitened(values, loss_mask)


def kl(logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    """Per-token estimate of KL(policy || reference). [...], [...] -> [...], nats."""
    return of_kl.kl_value(logprobs, reference_logprobs, estimator="k3")


def kl_loss(logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    """Per-token loss whose expected gradient is that of KL(policy || reference). [...], [...] -> [...], nats."""
    return of_kl.kl_loss(logprobs, reference_logprobs)


def grpo_advantages(rewards: Tensor, groups: Tensor) -> Tensor:
    """(reward - mean) / deviation of its group. [B], [B] -> [B]."""
    return of_groups.grpo_advantages(rewards, groups)


def dr_grpo_advantages(rewards: Tensor, groups: Tensor) -> Tensor:
    """Reward - mean of its group. [B], [B] -> [B]."""
    return of_groups.dr_grpo_advantages(rewards, groups)


def rloo_advantages(rewards: Tensor, groups: Tensor) -> Tensor:
    """Reward - mean of the others of its group. [B], [B] -> [B]."""
    return of_groups.rloo_advantages(rewards, groups)


def gae(rewards: Tensor, values: Tensor, loss_mask: Tensor, gamma: float, lam: float) -> Pair:
    """Advantages and returns of tokens. [B, T] each -> [B, T], [B, T]."""
    found = of_groups.gae(rewards=rewards, values=values, loss_mask=loss_mask, gamma=gamma, lam=lam)
    return found.advantages, found.returns


def policy_loss(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, loss_mask: Tensor) -> Tensor:
    """Mean over marked tokens of PPO's clipped loss, clip range 0.8 to 1.2. [B, T] each -> []."""
    return _clipped((logprobs, old_logprobs, advantages), loss_mask, dual=None)


def dual_clip_loss(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, loss_mask: Tensor) -> Tensor:
    """The same with the loss of a negative advantage at most 3 times its size. [B, T] each -> []."""
    return _clipped((logprobs, old_logprobs, advantages), loss_mask, dual=DUAL)


def token_mean(losses: Tensor, loss_mask: Tensor, counts: BatchCounts) -> Tensor:
    """A part's summand of the mean over all tokens. [B, T], [B, T] -> []."""
    return aggregated(losses, loss_mask, how="token_mean", whole=_whole(counts))


def sequence_mean(losses: Tensor, loss_mask: Tensor, counts: BatchCounts) -> Tensor:
    """A part's summand of the mean over completions of the mean over a completion's tokens. Shape: as above."""
    return aggregated(losses, loss_mask, how="sequence_mean", whole=_whole(counts))


def constant_length(losses: Tensor, loss_mask: Tensor, counts: BatchCounts) -> Tensor:
    """A part's summand of the sum over tokens / (completions * counts.length). Shape: as above."""
    return aggregated(losses, loss_mask, how="constant_length", whole=_whole(counts), length=counts.length)


def overlong(lengths: Tensor, limit: int, buffer: int) -> Tensor:
    """0 up to limit - buffer, linear down to -1 at the limit and beyond. [B] -> [B], reward."""
    return shaping.soft_overlong(lengths, limit=limit, buffer=buffer)


def agrees(rollout_logprobs: Tensor, trainer_logprobs: Tensor, loss_mask: Tensor, limit: float) -> bool | None:
    """Whether the mean k3 is below the limit; None where two standard errors over rollouts do not decide.

    Shape: [B, T] each. limit: nats per token.
    """
    d = torch.where(loss_mask.bool(), trainer_logprobs - rollout_logprobs, 0.0)
    sums, counts = (torch.expm1(d) - d).sum(dim=1), loss_mask.bool().sum(dim=1)
    mean = sums.sum() / counts.sum()
    error = (sums - mean * counts).square().sum().sqrt() / counts.sum()
    if bool(mean + 2 * error < limit):
        return True
    return False if bool(mean - 2 * error > limit) else None


def is_systematic(d: Tensor) -> None:
    """None, always: d alone does not say.

    Of tokens that the rollout policy sampled, d has the expectation -KL whatever the cause, and its sum over T tokens
    drifts by KL * T and spreads by sqrt(2 * KL * T). A cause is shown by applying its correction: `onepolicy diagnose`.
    Shape: [rollouts, tokens], nats.
    """


def _clipped(tensors: tuple[Tensor, Tensor, Tensor], loss_mask: Tensor, *, dual: float | None) -> Tensor:
    """Selected before the ratio is taken: exp of what lies under the mask may have no gradient, and 0 * NaN is NaN."""
    chosen = (torch.where(loss_mask.bool(), one, 0.0) for one in tensors)
    return aggregated(clipped_loss(*chosen, low=LOW, high=HIGH, dual=dual), loss_mask, how="token_mean")


def _whole(counts: BatchCounts) -> Whole:
    return Whole(tokens=counts.tokens, sequences=counts.sequences)
