"""Advantages of tokens with a value model."""

from __future__ import annotations

import torch
from torch import Tensor

from onepolicy.signal.conformance.case import Case, Observed, tensor
from onepolicy.signal.conformance.planted import JUNK, MASK, WITH_EMPTY, normal, under_mask
from onepolicy.signal.conformance.subject import Call

GAMMA, LAM = 0.95, 0.9
WITH_TOOL = torch.tensor([[1, 1, 0, 0, 1], [1, 1, 1, 0, 0], [1, 0, 1, 1, 1]])
"""tokens of a tool between sampled ones"""


def _gae(call: Call, mask: Tensor, junk: tuple[float, ...]) -> Observed:
    rewards = torch.zeros(mask.shape, dtype=torch.float64)
    for row, marked in enumerate(mask.bool()):
        if bool(marked.any()):
            rewards[row, marked.nonzero()[-1]] = 1.0 + row
    found = call(rewards, under_mask(normal(*mask.shape, seed=10), mask, junk), mask, GAMMA, LAM)
    if not isinstance(found, tuple) or len(found) != 2:
        raise TypeError("it did not return two tensors, advantages and returns")
    chosen = mask.bool()
    return {name: tensor(one).detach()[chosen] for name, one in zip(("advantages", "returns"), found, strict=True)}


CASES = (
    Case(
        role="gae",
        name="unequal lengths",
        planted="completions of 2, 4 and 5 tokens, finite values under the mask",
        otherwise="The end of a completion is credited with the value of padding.",
        puts_through=lambda call: _gae(call, MASK, (5.0, -3.0)),
    ),
    Case(
        role="gae",
        name="tokens of a tool",
        planted="tokens between sampled ones that the mask leaves out",
        otherwise="Time is counted, and value is taken, in a tool's output.",
        puts_through=lambda call: _gae(call, WITH_TOOL, (5.0, -3.0)),
    ),
    Case(
        role="gae",
        name="NaN, inf and 1e4 under the mask",
        planted="values that no token has, in positions that the mask leaves out",
        otherwise="What a value model says of padding enters the advantages.",
        puts_through=lambda call: _gae(call, MASK, JUNK),
    ),
    Case(
        role="gae",
        name="zero length",
        planted="a completion without a token",
        otherwise="An aborted rollout stops the training, or moves the others' advantages.",
        puts_through=lambda call: _gae(call, WITH_EMPTY, (0.0,)),
    ),
)
