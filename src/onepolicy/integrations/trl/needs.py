"""What the monitor needs of a GRPOTrainer, said when it is attached and not when it is missed."""

from __future__ import annotations

import operator
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from onepolicy.errors import UsageError

MADE_FOR = "1.16"
"""the version of TRL whose methods these are"""
METHODS = (
    "_generate_and_score_completions", "_get_per_token_logps_and_entropies", "compute_loss", "log", "add_callback",
)  # fmt: skip
FIELDS = ("accelerator", "args", "model", "num_generations", "state", "use_vllm")
MARK = "onepolicy_monitored"


def check(trainer: Any) -> None:
    """Raises: UsageError if this is no GRPOTrainer as it is known, if it has a monitor, or only one engine."""
    missing = [f"{name}()" for name in METHODS if not callable(getattr(trainer, name, None))]
    missing += [name for name in FIELDS if not hasattr(trainer, name)]
    if missing:
        raise UsageError(
            f"a {type(trainer).__name__} of TRL {_installed('trl')} has no {', '.join(missing)}. The monitor attaches "
            f"to a GRPOTrainer as of TRL {MADE_FOR}; install that, or give the tensors to `Monitor.update` yourself "
            "(docs/monitor.md)."
        )
    if getattr(trainer, MARK, False):
        raise UsageError("this trainer has a monitor already; attach one, once.")
    if getattr(trainer, "rollout_func", None) is None and not trainer.use_vllm:
        raise UsageError(
            "TRL samples from the trainer's own model here (use_vllm=False and no rollout_func): there is no second "
            "engine. " + second_engine(trainer)
        )


def second_engine(trainer: Any) -> str:
    """What to do where no logprobs come from the side that samples."""
    if getattr(trainer, "rollout_func", None) is not None:
        return 'let `rollout_func` return "logprobs", a list for each completion, at the sampling temperature.'
    return (
        'Set `use_vllm=True` in GRPOConfig, or give the trainer a `rollout_func` that returns "logprobs" beside '
        '"prompt_ids" and "completion_ids".'
    )


def about(trainer: Any) -> dict[str, str]:
    """What the numbers depend on, as far as the trainer says."""
    own = getattr(trainer, "rollout_func", None) is not None
    names = ("temperature", "top_p", "top_k", "min_p", "bf16", "fp16")
    options = {name: str(getattr(trainer.args, name)) for name in names if hasattr(trainer.args, name)}
    return {
        "model": str(getattr(trainer.model.config, "_name_or_path", "?")),
        "rollout_engine": "rollout_func" if own else f"vllm {_installed('vllm')}, {trainer.vllm_mode}",
        "trainer_engine": f"trl {_installed('trl')}, transformers {_installed('transformers')}",
        **options,
    }


def pad_id(trainer: Any) -> int:
    """The id that TRL pads with."""
    return int(getattr(trainer.processing_class, "tokenizer", trainer.processing_class).pad_token_id)


def whole_number(value: Any, name: str) -> int:
    """A version as a number, -1 for None. Raises: UsageError for what is neither."""
    try:
        return -1 if value is None else operator.index(value)
    except TypeError as error:
        raise UsageError(
            f"{name} gave {value!r}, which is no whole number. Give the number of optimizer updates in the weights "
            "that sampled, or None where it is not known."
        ) from error


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "(not installed)"
