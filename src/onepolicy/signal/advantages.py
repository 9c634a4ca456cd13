"""Advantages: of groups of completions of one prompt (GRPO, Dr. GRPO, RLOO), and of tokens with a value model (GAE).

Groups are given by id, not by place: a batch may be shuffled. Nothing here divides by a standard deviation of rounding.
Means and deviations are taken in float64, whatever the type of the rewards. A NaN makes its group NaN, and no other.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from onepolicy.errors import AlignmentError, UsageError
from onepolicy.signal.kinds import floating, marked, whole_numbers
from onepolicy.signal.masks import SAME


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenAdvantages:
    """What GAE gives."""

    advantages: Tensor
    """[B, T]; 0 where the mask is"""
    returns: Tensor
    """[B, T] advantage plus value, which the value model is trained on; 0 where the mask is"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Groups:
    """Rewards by group; each tensor has an entry for every completion."""

    centred: Tensor
    """[B] float64, reward minus the mean of its group"""
    size: Tensor
    """[B] completions in its group"""
    squares: Tensor
    """[B] float64, sum of the squares of `centred` over its group"""
    scale: Tensor
    """[B] float64, root mean square of the rewards of its group"""


def grpo_advantages(rewards: Tensor, groups: Tensor, *, epsilon: float = 0.0, ddof: int = 1) -> Tensor:
    """(reward - mean of its group) / (standard deviation of its group + epsilon).

    0 in a group of one or of equal rewards, which teaches nothing. ddof: 1 divides the squares by n - 1, as TRL and
    verl do; 0 by n.
    Shape: [B], [B] integers -> [B]. Raises: AlignmentError if the shapes differ; UsageError for an epsilon
    below 0, and another ddof.
    Source: Z. Shao et al., "DeepSeekMath" (2024), arXiv 2402.03300, section 4.1.
    """
    if ddof not in (0, 1) or not epsilon >= 0:
        raise UsageError(f"epsilon is {epsilon} and ddof {ddof}: an epsilon is 0 or more, and ddof 0 or 1.")
    found = _grouped(rewards, groups)
    spread = (found.squares / (found.size - ddof).clamp(min=1)).sqrt()
    is_flat = (found.size == 1) | (spread <= SAME * found.scale)
    return _as(rewards, found.centred / (spread + epsilon).masked_fill(is_flat, torch.inf))


def dr_grpo_advantages(rewards: Tensor, groups: Tensor) -> Tensor:
    """Reward - mean of its group, not divided by a spread: a hard prompt weighs as much as an easy one.

    Shape: [B], [B] integers -> [B]. Raises: AlignmentError if the shapes differ.
    Source: Z. Liu et al., "Understanding R1-Zero-Like Training" (2025), arXiv 2503.20783.
    """
    return _as(rewards, _grouped(rewards, groups).centred)


def rloo_advantages(rewards: Tensor, groups: Tensor) -> Tensor:
    """Reward - mean of the others of its group; 0 in a group of one, which has no others.

    Shape: [B], [B] integers -> [B]. Raises: AlignmentError if the shapes differ.
    Source: A. Ahmadian et al., "Back to Basics" (2024), arXiv 2402.14740, section 3.
    """
    found = _grouped(rewards, groups)
    return _as(rewards, found.centred * found.size / (found.size - 1).clamp(min=1))


@torch.no_grad()
def gae(*, rewards: Tensor, values: Tensor, loss_mask: Tensor, gamma: float = 1.0, lam: float = 1.0) -> TokenAdvantages:
    """Generalised advantage estimates; not whitened.

    A token that the mask leaves out (padding, a tool's output) is no step: the value after a sampled token is that of
    the next sampled one, and 0 after the last. A reward on such a token is refused, as it would be lost.
    Shape: [B, T] each; of whole numbers, in float64. Raises: AlignmentError if shapes differ or a reward lies outside
    the mask; UsageError for a mask that holds something else than 0 and 1, and unless gamma and lam are 0 to 1.
    Source: J. Schulman et al., "High-Dimensional Continuous Control Using Generalized Advantage Estimation" (2015),
    arXiv 1506.02438, equation 16.
    """
    if not (0 <= gamma <= 1 and 0 <= lam <= 1):
        raise UsageError(f"gamma is {gamma} and lam {lam}: both are 0 to 1.")
    mask = marked(loss_mask)
    _check_tokens(rewards, values, mask)
    rewards, values = floating(rewards), floating(values)
    advantages = torch.zeros_like(rewards + values)
    next_value = next_advantage = advantages.new_zeros(len(values))
    for t in reversed(range(values.shape[1])):
        here = mask[:, t]
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        advantage = delta + gamma * lam * next_advantage
        next_value = torch.where(here, values[:, t], next_value)
        next_advantage = torch.where(here, advantage, next_advantage)
        advantages[:, t] = torch.where(here, advantage, 0.0)
    return TokenAdvantages(advantages=advantages, returns=torch.where(mask, advantages + values, 0.0))


def _check_tokens(rewards: Tensor, values: Tensor, loss_mask: Tensor) -> None:
    """Raises: AlignmentError."""
    for name, tensor in (("values", values), ("loss_mask", loss_mask)):
        if rewards.ndim != 2 or tensor.shape != rewards.shape:
            raise AlignmentError(
                f"{name} have shape {list(tensor.shape)} and the rewards {list(rewards.shape)}. All are [B, T]."
            )
    outside = (rewards != 0) & ~loss_mask
    if bool(outside.any()):
        row, column = outside.nonzero()[0].tolist()
        raise AlignmentError(
            f"the reward of row {row} lies at column {column}, which the mask leaves out, so that it would be lost. "
            "Put it on the last token of the completion."
        )


def _grouped(rewards: Tensor, groups: Tensor) -> _Groups:
    whole_numbers("groups", groups)
    if rewards.ndim != 1 or rewards.shape != groups.shape:
        raise AlignmentError(
            f"rewards have shape {list(rewards.shape)} and groups {list(groups.shape)}. Both are [completions]."
        )
    _, index, counts = torch.unique(groups, return_inverse=True, return_counts=True)
    exact = rewards.double()

    def of_group(values: Tensor) -> Tensor:
        return values.new_zeros(len(counts)).index_add_(0, index, values)[index]

    size = counts[index]
    centred = exact - of_group(exact) / size
    scale = (of_group(exact.square()) / size).sqrt()
    return _Groups(centred=centred, size=size, squares=of_group(centred.square()), scale=scale)


def _as(rewards: Tensor, advantages: Tensor) -> Tensor:
    """In the type of the rewards; of whole numbers, in float64."""
    return advantages.to(floating(rewards).dtype)
