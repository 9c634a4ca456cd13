"""PPO's clipped loss: value, sign and gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from onepolicy.signal.conformance.case import Case, Observed, differentiated, tensor
from onepolicy.signal.conformance.planted import MASK, WITH_EMPTY, logprobs_like, normal, under_mask
from onepolicy.signal.conformance.subject import Call

STEP = 1e-2


def _loss(call: Call, mask: Tensor, *, shift: Tensor, advantages: Tensor, junk: tuple[float, ...]) -> Observed:
    """shift: logprobs minus old logprobs, [B, T]."""
    old, credit = under_mask(logprobs_like(mask), mask, junk), under_mask(advantages, mask, junk)
    at = under_mask(logprobs_like(mask) + shift, mask, junk)
    return differentiated(lambda logprobs: tensor(call(logprobs, old, credit, mask)), at)


def _step(call: Call) -> Observed:
    """What one small step on the loss does to the probability of each sampled token: up 1, down -1."""
    logits = normal(*MASK.shape, 4, seed=11)
    token_ids = torch.arange(MASK.numel()).view(MASK.shape) % 4

    def logprobs(at: Tensor) -> Tensor:
        return at.log_softmax(dim=-1).gather(-1, token_ids[..., None])[..., 0]

    def loss(at: Tensor) -> Tensor:
        return tensor(call(logprobs(at), logprobs(at).detach(), _advantages(), MASK))

    after = logprobs(logits - STEP * differentiated(loss, logits)["gradient"])
    return {"sign": torch.sign(after - logprobs(logits))[MASK.bool()]}


def _shift(scale: float) -> Tensor:
    return normal(*MASK.shape, seed=13, scale=scale)


def _advantages() -> Tensor:
    return normal(*MASK.shape, seed=12)


_SHARED = (
    (
        "on policy",
        "ratios of 1",
        "The first step after sampling is not the policy gradient.",
        lambda call: _loss(call, MASK, shift=_shift(0.0), advantages=_advantages(), junk=(0.0,)),
    ),
    (
        "one small step",
        "one step of gradient descent on the loss",
        "Training makes good tokens less likely.",
        _step,
    ),
    (
        "clipped",
        "ratios from 0.5 to 2, advantages of both signs",
        "The clip acts on the wrong side: it holds back corrections, or lets go of what it is there for.",
        lambda call: _loss(call, MASK, shift=_shift(0.4), advantages=_advantages(), junk=(0.0,)),
    ),
    (
        "finite values under the mask",
        "logprobs and advantages of padding that are numbers like any other",
        "Padding is trained.",
        lambda call: _loss(call, MASK, shift=_shift(0.4), advantages=_advantages(), junk=(-2.0, 1.5)),
    ),
    (
        "NaN, inf and 1e4 under the mask",
        "values that no token has, in positions that the mask leaves out",
        "One padded row makes the loss, or through its gradient all weights, NaN.",
        lambda call: _loss(
            call, MASK, shift=_shift(0.4), advantages=_advantages(), junk=(torch.nan, torch.inf, -torch.inf, 1e4)
        ),
    ),
    (
        "zero length",
        "a completion without a token",
        "An aborted rollout stops the training, or moves the loss of the others.",
        lambda call: _loss(call, WITH_EMPTY, shift=_shift(0.4), advantages=_advantages(), junk=(0.0,)),
    ),
    (
        "bad tokens, large ratios",
        "negative advantages on tokens that became 7 times as likely",
        "Without the dual clip the loss is not PPO's where it is largest; with it, one token dominates the batch.",
        lambda call: _loss(call, MASK, shift=_shift(0.0) + 2.0, advantages=-_advantages().abs(), junk=(0.0,)),
    ),
)
CASES = tuple(
    Case(role=role, name=name, planted=planted, otherwise=otherwise, puts_through=observe)
    for role in ("policy_loss", "dual_clip_loss")
    for name, planted, otherwise, observe in _SHARED
)
