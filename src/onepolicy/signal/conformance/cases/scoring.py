"""Logprobs of tokens from logits."""

from __future__ import annotations

import torch
from torch import Tensor

from onepolicy.signal.conformance.case import Case, Observed, differentiated, tensor
from onepolicy.signal.conformance.planted import normal
from onepolicy.signal.conformance.subject import Call

TOP_P = 0.9
_SHAPE = (2, 4, 11)


def _token_ids(seed: int) -> Tensor:
    return torch.randint(_SHAPE[2], _SHAPE[:2], generator=torch.Generator().manual_seed(seed))


def _value(call: Call) -> Observed:
    return differentiated(lambda logits: tensor(call(logits, _token_ids(1), 1.0)), normal(*_SHAPE))


def _temperature(call: Call) -> Observed:
    return differentiated(lambda logits: tensor(call(logits, _token_ids(1), 0.7)), normal(*_SHAPE, scale=2.0))


def _large(call: Call) -> Observed:
    return differentiated(lambda logits: tensor(call(logits, _token_ids(2), 1.0)), normal(*_SHAPE) + 1e4)


def _forbidden(call: Call) -> Observed:
    logits, token_ids = normal(*_SHAPE), _token_ids(3)
    forbidden = torch.arange(_SHAPE[2]) % 3 == 0
    allowed = torch.where(token_ids % 3 == 0, token_ids + 1, token_ids)
    return differentiated(lambda x: tensor(call(x, allowed, 1.0)), logits.masked_fill(forbidden, -torch.inf))


def _kept(call: Call, temperature: float) -> Observed:
    """Tokens as they are sampled under top_p: the second likeliest where it is kept, else the likeliest."""
    logits = normal(*_SHAPE, seed=4, scale=1.5)
    most = (logits / temperature).softmax(dim=-1).max(dim=-1).values
    order = logits.topk(2, dim=-1).indices
    token_ids = torch.where(most < TOP_P, order[..., 1], order[..., 0])
    return {"value": tensor(call(logits, token_ids, temperature, TOP_P)).detach()}


_OTHERWISE = "Every logprob is of another distribution than the one that the tokens were sampled from."
CASES = (
    Case(role="token_logprobs", name="value", planted="random logits", otherwise=_OTHERWISE, puts_through=_value),
    Case(
        role="token_logprobs",
        name="temperature 0.7",
        planted="tokens that were sampled at temperature 0.7",
        otherwise="The importance ratio is not 1 on policy: the loss corrects for a temperature and not for training.",
        puts_through=_temperature,
    ),
    Case(
        role="token_logprobs",
        name="large logits",
        planted="10,000 is added to every logit, which changes no probability",
        otherwise="Softmax overflows, and the loss becomes NaN.",
        puts_through=_large,
    ),
    Case(
        role="token_logprobs",
        name="forbidden tokens",
        planted="logits of -inf, as a grammar leaves them, for tokens that were not sampled",
        otherwise="The loss or its gradient becomes NaN as soon as sampling is constrained.",
        puts_through=_forbidden,
    ),
    Case(
        role="processed_logprobs",
        name="top_p 0.9",
        planted="tokens that were sampled among those that top_p 0.9 keeps",
        otherwise="The mean importance ratio is the kept mass and not 1: every gradient is scaled by about 0.9, and "
        "tokens outside the kept set are trained that could never be sampled.",
        puts_through=lambda call: _kept(call, 1.0),
    ),
    Case(
        role="processed_logprobs",
        name="top_p after temperature",
        planted="the same at temperature 0.7, which makes the kept set smaller",
        otherwise="The trainer scores on another kept set than the engine sampled from.",
        puts_through=lambda call: _kept(call, 0.7),
    ),
)
