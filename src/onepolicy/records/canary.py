"""What a model says of some ids, kept to know it again: a server may be given another one behind the same name."""

from __future__ import annotations

import math

from onepolicy.records.strict import Strict

MOST_MEAN_D = 0.2
"""nats. One text under bfloat16 and float32 differs by 0.04 in the mean (SmolLM2-135M), and one server from itself by
less; noise of 1 % on every weight moves it by 0.18, noise of 2 % by 0.5, another model by more. A single step of
training does not: that is what weight versions are for."""
MOST_IDS = 64
"""a canary's length at most"""


class Canary(Strict):
    """Logprobs of fixed ids. Two of one model are close, whatever else the server does at the time."""

    token_ids: tuple[int, ...]
    weight_version: str = ""
    """as the server names it; empty if it does not"""
    logprobs: dict[str, float]
    """position, or an id that may come next -> nats; empty if the server says nothing that could be compared"""

    def mean_abs_d(self, other: Canary) -> float:
        """Mean |d| over what both hold; infinite if less than half, or of other ids. 0 if this one holds nothing."""
        if self.logprobs and self.token_ids != other.token_ids:
            return math.inf
        shared = self.logprobs.keys() & other.logprobs.keys()
        if 2 * len(shared) < len(self.logprobs):
            return math.inf
        return math.fsum(abs(self.logprobs[key] - other.logprobs[key]) for key in shared) / max(len(shared), 1)

    def is_of_the_model_of(self, other: Canary) -> bool:
        """Whether both may come from one model."""
        return self.mean_abs_d(other) <= MOST_MEAN_D
