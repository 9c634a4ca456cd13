"""Reward models: to add a way of asking one, its file in a framework's folder, and one line here."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from onepolicy.engines.options import EngineOptions, read_options
from onepolicy.engines.requests import is_url
from onepolicy.engines.spec import EngineSpec, parse_spec
from onepolicy.errors import UsageError
from onepolicy.signal.reward.scorer import Scorer

_HERE = "onepolicy.integrations"
JSON = "json"
SCORERS = {
    "transformers": (
        f"{_HERE}.transformers.reward:open_reward",
        f"{_HERE}.transformers.reward_options:RewardOptions",
    ),
    "callable": (f"{_HERE}.callable.reward:open_reward", f"{_HERE}.callable.reward:RewardOptions"),
    "vllm": (f"{_HERE}.vllm.reward:open_reward", f"{_HERE}.vllm.reward:RewardOptions"),
    "sglang": (f"{_HERE}.sglang.reward:open_reward", f"{_HERE}.sglang.reward:RewardOptions"),
    JSON: (f"{_HERE}.openai.reward:open_reward", f"{_HERE}.openai.reward:RewardOptions"),
}
"""name in a spec -> what opens it, (spec, options) -> Scorer, and the class of its options; imported when asked for"""


def scorer_spec(text: str) -> EngineSpec:
    """A spec, a URL (the JSON shape of docs/reward.md), or a folder or hub id. Raises: UsageError."""
    if is_url(text):
        return parse_spec(f"{JSON}:{text}")
    if text.partition(":")[0] in SCORERS:
        return parse_spec(text)
    return parse_spec(f"transformers:{text}")


def open_scorer(spec: EngineSpec) -> Scorer:
    """Open the reward model that a spec names. Raises: UsageError, EngineError."""
    if spec.engine not in SCORERS:
        raise UsageError(f"{str(spec)!r}: no reward model is asked by {spec.engine!r}. Known: {', '.join(SCORERS)}.")
    opens, options = SCORERS[spec.engine]
    kind: type[EngineOptions] = _imported(options)
    open_one: Callable[[EngineSpec, EngineOptions], Scorer] = _imported(opens)
    return open_one(spec, read_options(spec, kind))


def _imported(where: str) -> Any:
    module, name = where.split(":")
    return getattr(import_module(module), name)
