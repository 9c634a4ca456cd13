"""Completions made by hand."""

from collections.abc import Callable

import pytest

from onepolicy.behaviour.compare import Configured
from onepolicy.behaviour.completions import Observed, PromptPair, Side
from onepolicy.behaviour.result import BehaviourSide


def completion(prompt: str = "p", sample: int = 0, **fields) -> Observed:
    usual = {"prompt_digest": prompt, "token_ids": (1, 2, 3), "text": "a text", "finish_reason": "stop"}
    return Observed(rollout_id=f"{prompt}/{sample}", prompt_id=prompt, **{**usual, **fields})


@pytest.fixture(scope="session")
def one() -> Callable[..., Observed]:
    return completion


@pytest.fixture(scope="session")
def pair() -> Callable[..., PromptPair]:
    """A prompt whose completions differ in one field: pair("p", "reward", [1.0], [0.0])."""

    def make(prompt: str, field: str, a: list, b: list) -> PromptPair:
        sides = ([completion(prompt, i, **{field: value}) for i, value in enumerate(side)] for side in (a, b))
        first, second = (tuple(side) for side in sides)
        return PromptPair(prompt_id=prompt, a=first, b=second)

    return make


@pytest.fixture(scope="session")
def configured() -> Callable[..., Configured]:
    def make(completions: list[Observed], *, greedy: bool = False) -> Configured:
        shown = BehaviourSide(run="run", engine="fake:m", protocol={}, rollouts=len(completions))
        return Configured(side=Side(completions=completions, greedy=greedy), shown=shown, max_new_tokens=64)

    return make
