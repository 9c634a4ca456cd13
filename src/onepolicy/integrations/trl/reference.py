"""One line that guards the reference policy of a TRL training.

What TRL uses as the reference: `ref_model`, a model of its own; with PEFT, the policy's model within `use_adapter`, its
adapters off, or with the adapter "ref", a copy of one that the policy starts from. GRPO and RLOO score it last of all
in `_generate_and_score_completions`, by the function that scores the policy. That call is held against the reference
itself, so that an adapter that stayed on, or dropout, is seen where it does harm.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onepolicy.errors import UsageError
from onepolicy.monitor.reference.guard import EVERY, Policy, ReferenceGuard
from onepolicy.monitor.reference.model import Reference, Score, teacher_forced, with_adapter, without_adapters

if TYPE_CHECKING:
    from torch import Tensor

    from onepolicy.weights.digest import WeightsDigest

REF_ADAPTER = "ref"
MARK = "onepolicy_guarded"
Scored = Callable[..., Any]
"""TRL's `_get_per_token_logps_and_entropies`: a model, ids, masks -> logprobs [B, T] and more"""


def guard_reference(
    trainer: Any,
    path: str | Path,
    *,
    policy: Policy = "warn",
    every: int = EVERY,
    expected: str | Path | WeightsDigest | None = None,
) -> ReferenceGuard:
    """Guard the reference of a GRPOTrainer, RLOOTrainer or DPOTrainer, before `train()`; closed when that ends.

    path: a folder for `reference.json`, such as the monitor's. policy, every, expected: as for `ReferenceGuard`.
    Raises: UsageError if the training has no reference, or one that is meant to move; and as `ReferenceGuard` does.
    """
    _check(trainer)
    guard = ReferenceGuard(
        path, _reference(trainer), trained=trainer.model, expected=expected, policy=policy, every=every
    )
    if callable(getattr(trainer, "_get_per_token_logps_and_entropies", None)):
        _Pass(trainer, guard).install()
    trainer.add_callback(_callback(guard))
    setattr(trainer, MARK, True)
    return guard


def _check(trainer: Any) -> None:
    name, args = type(trainer).__name__, getattr(trainer, "args", None)
    if args is None or not hasattr(trainer, "ref_model") or not hasattr(trainer, "add_callback"):
        raise UsageError(f"a {name} has no `ref_model`; give a GRPOTrainer, an RLOOTrainer or a DPOTrainer of TRL.")
    if getattr(trainer, MARK, False):
        raise UsageError("this trainer's reference is guarded already; guard it once.")
    if getattr(args, "beta", None) == 0.0:
        raise UsageError(
            f"{name} with beta=0.0 uses no reference policy, so there is nothing to guard. Leave this line out, or set "
            "`beta` above 0."
        )
    if getattr(args, "sync_ref_model", False):
        raise UsageError(
            "sync_ref_model=True moves the reference towards the policy every `ref_model_sync_steps`: it is not "
            "frozen, and is not meant to be. Leave this line out, or set sync_ref_model=False."
        )


def _reference(trainer: Any) -> Reference:
    score = _score(trainer)
    if trainer.ref_model is not None:
        return Reference(model=trainer.ref_model, score=score)
    model = trainer.accelerator.unwrap_model(trainer.model)
    if not hasattr(model, "peft_config"):
        raise UsageError(
            f"{type(trainer).__name__} keeps no reference model here (ref_model is None, and the policy has no PEFT "
            "adapter): its logprobs were computed before, or are not used. There is nothing to guard."
        )
    if REF_ADAPTER in model.peft_config:
        return with_adapter(model, REF_ADAPTER, score=score)
    return without_adapters(model, score=score)


def _score(trainer: Any) -> Score:
    """TRL's own function, with the sampling temperature in it; plain logprobs where it has none, as DPO."""
    theirs = getattr(trainer, "_get_per_token_logps_and_entropies", None)
    if not callable(theirs):
        return teacher_forced

    def score(model: Any, ids: Tensor) -> Tensor:
        found: Tensor = theirs(model, ids, ids.new_ones(ids.shape), ids.shape[1] - 1)[0]
        return found

    return score


class _Pass:
    """Holds the pass that TRL makes against the reference: of its first two batches, then every `every` steps."""

    def __init__(self, trainer: Any, guard: ReferenceGuard) -> None:
        self._trainer, self._guard = trainer, guard
        self._last: Callable[[], None] | None = None
        """holds the last call of a generation against the reference; None where none is to be looked at"""
        self._generating = False
        self._looked: list[int] = []
        """steps"""

    def install(self) -> None:
        """Wrap the two methods."""
        trainer = self._trainer
        generate, score = trainer._generate_and_score_completions, trainer._get_per_token_logps_and_entropies

        @functools.wraps(score)
        def scored(model: Any, *args: Any, **kwargs: Any) -> Any:
            found = score(model, *args, **kwargs)
            if self._generating:
                self._last = functools.partial(self._hold, found[0], lambda other: score(other, *args, **kwargs)[0])
            return found

        @functools.wraps(generate)
        def generated(inputs: Any) -> Any:
            self._generating, self._last = trainer.model.training and self._is_time(), None
            try:
                batch = generate(inputs)
            finally:
                self._generating = False
            self._hold_last()
            return batch

        trainer._get_per_token_logps_and_entropies, trainer._generate_and_score_completions = scored, generated

    def _is_time(self) -> bool:
        return len(self._looked) < 2 or self._step - self._looked[-1] >= self._guard.every

    def _hold_last(self) -> None:
        last, self._last = self._last, None
        if last is not None:
            last()

    def _hold(self, used: Tensor, score: Callable[[Any], Tensor]) -> None:
        self._looked = [*self._looked[-1:], self._step]
        self._guard.used(self._step, used, score)

    @property
    def _step(self) -> int:
        """The one that is running."""
        return int(self._trainer.state.global_step) + 1


def _callback(guard: ReferenceGuard) -> Any:
    from transformers import TrainerCallback  # noqa: PLC0415 - loaded by the trainer

    class ReferenceCallback(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            guard.watch(kwargs["optimizer"])

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            guard.step(int(state.global_step))

        def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            guard.close()

    return ReferenceCallback()
