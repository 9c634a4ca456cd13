"""What a comparison needs of verl's configuration, said before the first step, and what the numbers depend on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from onepolicy.errors import UsageError
from onepolicy.integrations.verl.rollouts import BYPASS, CALCULATE
from onepolicy.integrations.verl.signal_checks import GROUP_RELATIVE, SignalChecks

ABOUT = {
    "model": "actor_rollout_ref.model.path",
    "rollout_engine": "actor_rollout_ref.rollout.name",
    "temperature": "actor_rollout_ref.rollout.temperature",
    "top_p": "actor_rollout_ref.rollout.top_p",
    "top_k": "actor_rollout_ref.rollout.top_k",
    "rollout_dtype": "actor_rollout_ref.rollout.dtype",
    "trainer_strategy": "actor_rollout_ref.actor.strategy",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a trainer says of itself."""

    signal: SignalChecks
    about: dict[str, str]


def check(config: Any) -> None:
    """Raises: UsageError if there will be no two sides to compare."""
    if value_at(config, BYPASS):
        raise UsageError(
            f"{BYPASS}=True: verl takes the rollout's logprobs for the trainer's, so whether the two policies agree "
            "is unknown. Set it to False, or train without the monitor."
        )
    if not value_at(config, CALCULATE):
        raise UsageError(
            f"the engine is not asked for its logprobs, so there is nothing to compare. Set {CALCULATE}=True."
        )


def settings_of(trainer: Any, *, every: int) -> Settings:
    """every: steps between two checks of the training signal."""
    end = getattr(getattr(trainer, "tokenizer", None), "eos_token_id", None)
    estimator = value_at(trainer.config, "algorithm.adv_estimator")
    said = {name: value_at(trainer.config, path) for name, path in ABOUT.items()}
    about = {name: str(value) for name, value in said.items() if value is not None}
    return Settings(
        signal=SignalChecks(
            every=every,
            end_ids=() if end is None else (int(end),),
            group_relative=str(getattr(estimator, "value", estimator)) in GROUP_RELATIVE,
        ),
        about={"trainer_engine": f"verl {_installed('verl')}", **about},
    )


def value_at(config: Any, path: str) -> Any:
    """The value at a dotted path of a mapping of mappings; None where there is none."""
    for name in path.split("."):
        if not isinstance(config, Mapping) and not hasattr(config, "get"):
            return None
        config = config.get(name)
    return config


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "(not installed)"
