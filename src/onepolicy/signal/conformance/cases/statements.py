"""Functions that state something of a mismatch: that two sides agree, that a difference is systematic."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from onepolicy.signal.conformance.case import Case, Observed, answer
from onepolicy.signal.conformance.planted import normal, under_mask
from onepolicy.signal.conformance.subject import Call

LIMIT = 1e-4
ROLLOUTS, TOKENS = 30, 10


def chance(kl: float, *shape: int, seed: int) -> Tensor:
    """d of two policies with this KL whose difference is chance: normal, mean -kl, variance 2 kl, mean exp(d) = 1."""
    return -kl + normal(*shape, seed=seed, scale=(2 * kl) ** 0.5)


@cache
def misleading(kl: float, low: float, high: float) -> Tensor:
    """300 tokens of such policies whose k1, the mean of -d, happens to lie between `low` and `high`."""
    draws = (chance(kl, ROLLOUTS, TOKENS, seed=seed) for seed in range(10_000))
    return next(d for d in draws if low < float(-d.mean()) < high)


def opposite() -> Tensor:
    """Errors of 0.3 nats, half of them up and half down."""
    return 0.3 * torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(ROLLOUTS, TOKENS // 2)


def one_rollout() -> Tensor:
    """All equal but for one rollout, which is 0.5 nats off at each token."""
    d = torch.zeros(ROLLOUTS, TOKENS, dtype=torch.float64)
    d[7] = -0.5
    return d


def other_temperature(rollouts: int, tokens: int) -> Tensor:
    """d of a trainer that scores at temperature 1.02 what was sampled at 1."""
    logits = normal(rollouts, tokens, 50, seed=15, scale=1.5)
    rollout = logits.log_softmax(dim=-1)
    sampled = torch.multinomial(rollout.exp().flatten(0, 1), 1, generator=torch.Generator().manual_seed(3))
    d = (logits / 1.02).log_softmax(dim=-1) - rollout
    return d.gather(-1, sampled.view(rollouts, tokens, 1))[..., 0]


def _agrees(call: Call, d: Tensor, mask: Tensor | None = None) -> Observed:
    marked = torch.ones(d.shape, dtype=torch.long) if mask is None else mask
    rollout = normal(*d.shape, seed=16) - 4.0
    return answer(call(under_mask(rollout, marked), under_mask(rollout + d, marked), marked, LIMIT))


def _padded(call: Call) -> Observed:
    mask = torch.ones(ROLLOUTS, TOKENS, dtype=torch.long)
    mask[::2, 6:] = 0
    return _agrees(call, chance(1e-6, ROLLOUTS, TOKENS, seed=17), mask)


_BLIND = "A mismatch that is trained on is called agreement."
CASES = (
    Case(
        role="agrees",
        name="equal",
        planted="the same logprobs on both sides",
        otherwise="A check that fails on equal sides stops every training.",
        truth=True,
        puts_through=lambda call: _agrees(call, torch.zeros(ROLLOUTS, TOKENS, dtype=torch.float64)),
    ),
    Case(
        role="agrees",
        name="opposite errors",
        planted="errors of 0.3 nats of both signs, whose mean is 0",
        otherwise=_BLIND + " A mean near 0 proves nothing: look at |d|, tails and sums over a rollout.",
        truth=False,
        puts_through=lambda call: _agrees(call, opposite()),
    ),
    Case(
        role="agrees",
        name="one rollout is off",
        planted="29 equal rollouts, and one that is 0.5 nats off at each token",
        otherwise=_BLIND,
        truth=False,
        puts_through=lambda call: _agrees(call, one_rollout()),
    ),
    Case(
        role="agrees",
        name="k1 of 300 tokens above the limit by chance",
        planted="policies whose KL is a tenth of the limit of 1e-4, and whose mean log ratio happens to be twice it",
        otherwise="The answer is drawn by lot: the error of k1 over 300 tokens is far above the limit. k3 decides.",
        truth=True,
        puts_through=lambda call: _agrees(call, misleading(LIMIT / 10, 2 * LIMIT, 8 * LIMIT)),
    ),
    Case(
        role="agrees",
        name="k1 of 300 tokens below the limit by chance",
        planted="policies whose KL is ten times the limit, and whose mean log ratio happens to be below it",
        otherwise="The answer is drawn by lot: the error of k1 over 300 tokens is far above the limit. k3 decides.",
        truth=False,
        puts_through=lambda call: _agrees(call, misleading(LIMIT * 10, -LIMIT, LIMIT)),
    ),
    Case(
        role="agrees",
        name="NaN, inf and 1e4 under the mask",
        planted="values that no token has, in positions that the mask leaves out",
        otherwise="Padding decides.",
        truth=True,
        puts_through=_padded,
    ),
    Case(
        role="is_systematic",
        name="mean of chance",
        planted="16,384 tokens of policies that differ by chance: the mean of d is -KL, six standard errors from 0",
        otherwise="Rounding is called a bug: sampled from the rollout policy, d has the mean -KL whatever the cause.",
        truth=False,
        puts_through=lambda call: answer(call(chance(5e-3, 64, 256, seed=18))),
    ),
    Case(
        role="is_systematic",
        name="linear growth of chance",
        planted="rollouts of 4,096 tokens of policies that differ by chance: the drift of -KL per token outgrows the "
        "spread",
        otherwise="Rounding is called a bias, as every mismatch drifts linearly in the end.",
        truth=False,
        puts_through=lambda call: answer(call(chance(5e-3, 16, 4096, seed=19))),
    ),
    Case(
        role="is_systematic",
        name="square root growth of a cause",
        planted="rollouts of 200 tokens that were scored at temperature 1.02: the spread still hides the drift",
        otherwise="A cause with a remedy is called chance, as over a short rollout every mismatch spreads.",
        truth=True,
        puts_through=lambda call: answer(call(other_temperature(8, 200))),
    ),
)
