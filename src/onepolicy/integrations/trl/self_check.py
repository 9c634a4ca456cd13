"""One line that asks a question every so many steps of a Transformers or TRL training."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Literal, Protocol

from onepolicy.errors import OnePolicyError
from onepolicy.records.verdict import Status

logger = logging.getLogger("onepolicy.self_check")


class Answer(Protocol):
    """What a check found; written as text it is one sentence."""

    @property
    def status(self) -> Status:
        """pass, fail or unknown."""


Check = Callable[[int], Answer | None]
"""global step -> what was found; None where it does not look. `workflow.behave.BehaveEvery` is one"""


def attach_self_check(trainer: Any, check: Check, *, when: Literal["step", "save"] = "step") -> None:
    """Let a trainer ask `check` after each of its steps, or after each checkpoint is saved; on the first rank alone.

    A fail is logged as an error, unknown as a warning, and so is a check that could not run: the training goes on. The
    trainer waits for the answer, so the other ranks wait at their next collective operation.
    """
    trainer.add_callback(_callback(check, when=when))


def _callback(check: Check, *, when: Literal["step", "save"]) -> Any:
    from transformers import TrainerCallback  # noqa: PLC0415 - loaded by the trainer

    class SelfCheckCallback(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if when == "step" and state.is_world_process_zero:
                _ask(check, int(state.global_step))

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if when == "save" and state.is_world_process_zero:
                _ask(check, int(state.global_step))

    return SelfCheckCallback()


def _ask(check: Check, step: int) -> None:
    try:
        found = check(step)
    except OnePolicyError as error:
        logger.warning("step %d: the self-check could not run: %s", step, error)
        return
    if found is not None:
        levels = {Status.PASS: logging.INFO, Status.UNKNOWN: logging.WARNING, Status.FAIL: logging.ERROR}
        logger.log(levels[found.status], "step %d: %s", step, found)
