"""The soft penalty of long completions."""

from __future__ import annotations

import torch

from onepolicy.signal.conformance.case import Case, Observed, tensor
from onepolicy.signal.conformance.subject import Call

LIMIT, BUFFER = 20, 5


def _of(call: Call, lengths: range) -> Observed:
    return {"value": tensor(call(torch.tensor(list(lengths)), LIMIT, BUFFER)).detach()}


CASES = (
    Case(
        role="overlong",
        name="up to the limit",
        planted="every length from 1 to the limit of 20 with a buffer of 5",
        otherwise="The reward jumps from one length to the next, and the policy learns to stand before it.",
        puts_through=lambda call: _of(call, range(1, LIMIT + 1)),
    ),
    Case(
        role="overlong",
        name="beyond the limit",
        planted="lengths above the limit, as with a longer limit of the engine",
        otherwise="The penalty of one completion grows without bound and dominates its group.",
        puts_through=lambda call: _of(call, range(LIMIT + 1, LIMIT + 9)),
    ),
)
