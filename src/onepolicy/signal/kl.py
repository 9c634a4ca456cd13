"""The KL penalty to the reference policy, from tokens that the policy sampled: as a value, and as a loss.

With l the policy's logprob of a sampled token and r the reference's, k1 = l - r, k2 = (l - r)^2 / 2 and
k3 = exp(r - l) - 1 - (r - l). As values, k1 and k3 are unbiased for KL(policy || reference); k2 is not. As losses that
autograd differentiates, tokens fixed, the expected gradients are

    k1   0: it trains nothing
    k2   that of KL(policy || reference)
    k3   that of KL(reference || policy), which agrees with it only near equality

so a value and a gradient are asked for separately. All this holds of whatever l and r are the logprobs of. Token by
token, it is the KL of the next token's distributions, at prefixes that are taken as given: that a token also decides
which prefixes come after it has no gradient. Logprobs of whole completions (`masks.sequence_logprobs`) give the KL of
the distributions over completions and all of its gradient.
Source: J. Schulman, "Approximating KL Divergence" (2020); Y. Tang and R. Munos, "On a few pitfalls in KL divergence
gradient estimation for RL" (2025), arXiv 2506.09477.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from onepolicy.errors import AlignmentError, UsageError

Estimator = Literal["k1", "k2", "k3"]
ESTIMATORS: tuple[Estimator, ...] = ("k1", "k2", "k3")
SMALL = 0.01
"""nats below which exp(x) - 1 - x is a series: in float32 the difference itself keeps nothing of it at 1e-4"""


def kl_value(logprobs: Tensor, reference_logprobs: Tensor, *, estimator: Estimator = "k3") -> Tensor:
    """Per-token estimate of KL(policy || reference), for tokens that the policy sampled.

    Differentiated as it is, its gradient is that of the table above. NaN in gives NaN out; nothing is clamped.
    Shape: [...], [...] -> [...], nats. Raises: AlignmentError if the shapes differ; UsageError for another name.
    """
    x = _log_ratio(logprobs, reference_logprobs)
    if estimator == "k1":
        return x
    if estimator == "k2":
        return x.square() / 2
    if estimator == "k3":
        return _k3(-x)
    raise UsageError(f"there is no estimator {estimator!r}. Estimators: {', '.join(ESTIMATORS)}.")


def kl_loss(logprobs: Tensor, reference_logprobs: Tensor, *, estimator: Estimator = "k3") -> Tensor:
    """Per-token loss with the value of `estimator`, whose expected gradient is that of KL(policy || reference).

    To be added to the loss: minimising it brings the policy to the reference. Prefixes are taken as given; give
    logprobs of whole completions for the gradient through them. On-policy tokens; where they are of an older policy,
    weigh each with its importance ratio, held fixed.
    Shape: [...], [...] -> [...], nats. Raises: as `kl_value`.
    """
    carrier = kl_value(logprobs, reference_logprobs, estimator="k2")
    value = kl_value(logprobs, reference_logprobs, estimator=estimator)
    return value.detach() + (carrier - carrier.detach())


def kl_in_reward(logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    """Per-token penalty to take from the reward: k1, without a gradient.

    With the score function, the sum of k1 from a token on, times grad l of this token, is an unbiased gradient of the
    KL of whole completions; k1 of the token alone gives that of the next token's. k3 in its place gives neither.
    Shape: [...], [...] -> [...], nats. Raises: AlignmentError if the shapes differ.
    """
    return _log_ratio(logprobs, reference_logprobs).detach()


def _log_ratio(logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    if logprobs.shape != reference_logprobs.shape:
        raise AlignmentError(
            f"logprobs have shape {list(logprobs.shape)} and the reference's {list(reference_logprobs.shape)}."
        )
    return logprobs - reference_logprobs


def _k3(d: Tensor) -> Tensor:
    """exp(d) - 1 - d, to the precision of the type for small d too."""
    is_small = d.abs() < SMALL
    x = torch.where(is_small, d, 0.0)  # what is not chosen has a gradient too, and 0 times an overflow is NaN
    series = x.square() * (0.5 + x / 6 + x.square() / 24 + x**3 / 120 + x**4 / 720)
    return torch.where(is_small, series, torch.expm1(d) - d)
