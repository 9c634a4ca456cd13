"""A reward function of the user: a rule, a model of their own, or a judge behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

import numpy as np
from pydantic import Field

from onepolicy.engines.options import EngineOptions
from onepolicy.engines.scores import numbers_in
from onepolicy.engines.spec import EngineSpec
from onepolicy.errors import EngineError
from onepolicy.integrations.callable.function import UserFunction, load_function
from onepolicy.records.tokens import Float64
from onepolicy.signal.reward.pairs import Conversation
from onepolicy.signal.reward.scorer import Scorer, ScorerInfo


class RewardOptions(EngineOptions):
    """Options of `callable:my_pkg.rewards:score`."""

    label: int | None = Field(default=None, ge=0)
    """which of several outputs is the reward"""
    max_length: int | None = Field(default=None, ge=1)
    """tokens of the longest text that it takes; needed to see what it cuts"""
    dtype: str = "unknown"
    """what it computes in: float32 makes the limits of its checks narrow"""


def open_reward(spec: EngineSpec, options: RewardOptions) -> Scorer:
    """The function that a spec names. Raises: UsageError if there is none, EngineError if its module fails."""
    return CallableReward(load_function(spec.target), str(spec), options)


class CallableReward:
    """Asks `score(conversations: list[list[{"role", "content"}]]) -> one number each`; the last message is scored."""

    def __init__(self, function: UserFunction, name: str, options: RewardOptions) -> None:
        self._function = function
        self.info = ScorerInfo(name=name, dtype=options.dtype, label=options.label, max_length=options.max_length)

    def score(self, conversations: Sequence[Conversation]) -> Float64:
        """Shape: -> [B, L]. Raises: EngineError if it fails, or gives no number for each conversation."""
        plain = [[dict(message) for message in one] for one in conversations]
        answer = self._function.called(plain, label=f"{len(plain)} conversations")
        return numbers_of(answer, len(plain), name=self.info.name)

    def close(self) -> None:
        """Nothing is held."""


def numbers_of(answer: Any, count: int, *, name: str) -> Float64:
    """What a function returned as [B, L]; a tensor may still carry a gradient. Raises: EngineError if it is none."""
    kind = type(answer).__name__
    if isinstance(answer, str | bytes | Mapping | Set):
        raise EngineError(f"{name}: returned {kind}, not one number for each conversation. Return a list.")
    try:
        found = np.stack([numbers_in(_listed(one)) for one in _listed(answer)])
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise EngineError(f"{name}: returned {kind}, not one number for each conversation ({error}).") from error
    if len(found) != count:
        raise EngineError(f"{name}: returned numbers of shape {list(found.shape)} for {count} conversations.")
    return found


def _listed(value: Any) -> Any:
    """Lists and numbers of Python in place of tensors, whose library need not be imported here, arrays and tuples."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return list(value) if isinstance(value, tuple) else value
