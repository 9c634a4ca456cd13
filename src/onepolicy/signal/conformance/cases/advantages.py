"""Advantages of completions in groups."""

from __future__ import annotations

import torch
from torch import Tensor

from onepolicy.signal.conformance.case import Case, Observed, tensor
from onepolicy.signal.conformance.planted import normal
from onepolicy.signal.conformance.subject import Call

ROLES = ("grpo_advantages", "dr_grpo_advantages", "rloo_advantages")


def _of(call: Call, rewards: Tensor, groups: list[int]) -> Observed:
    return {"value": tensor(call(rewards, torch.tensor(groups))).detach()}


def _rewards(count: int) -> Tensor:
    return normal(count, seed=9) + 1.0


_PLANTED = (
    (
        "side by side",
        "two groups of four, one after the other",
        "Every completion is weighed by something else than how it compares with its siblings.",
        lambda call: _of(call, _rewards(8), [3, 3, 3, 3, 1, 1, 1, 1]),
    ),
    (
        "interleaved groups",
        "the same groups with their rows mixed, as shuffling or several workers leave them",
        "Completions are compared with those of other prompts: an easy prompt's are rewarded for being easy.",
        lambda call: _of(call, _rewards(8), [3, 1, 3, 1, 1, 3, 1, 3]),
    ),
    (
        "unequal groups",
        "groups of three and of five",
        "A group that lost rollouts is centred on its neighbours.",
        lambda call: _of(call, _rewards(8), [3, 3, 3, 1, 1, 1, 1, 1]),
    ),
    (
        "constant rewards",
        "a group of seven whose rewards are all 0.7 in float32, beside one of seven that differ",
        "A group that teaches nothing is trained on: the rounding of its mean is divided by a deviation of rounding.",
        lambda call: _of(call, torch.cat([torch.full((7,), 0.7), _rewards(7).float()]), [3] * 7 + [1] * 7),
    ),
    (
        "group of one",
        "a completion without siblings beside a group of three",
        "There is nothing to compare with, and yet the completion is trained, by its reward as it is.",
        lambda call: _of(call, _rewards(4), [3, 1, 1, 1]),
    ),
)
CASES = (
    *(
        Case(role=role, name=name, planted=planted, otherwise=otherwise, puts_through=observe)
        for role in ROLES
        for name, planted, otherwise, observe in _PLANTED
    ),
    Case(
        role="grpo_advantages",
        name="close rewards",
        planted="a group of four whose rewards are about 1e-4, in float32",
        otherwise="Rewards on a small scale teach less than the same rewards on a large one.",
        puts_through=lambda call: _of(call, (1e-4 * _rewards(4)).float(), [1, 1, 1, 1]),
    ),
)
