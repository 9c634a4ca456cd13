"""The monitor on verl's batch: two calls in a training loop, or none where `attach` of `attach.py` makes them.

`scored` comes after the old logprobs and before rollout correction, which takes the worst tokens out of the response
mask; `step` comes after the advantage and before the update. Nothing is computed by a model: the logprobs are verl's.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from onepolicy.integrations.verl.rollouts import ADVANTAGES, MASK, SAMPLED, Padded, padded, scored_batch
from onepolicy.integrations.verl.signal_checks import SignalChecks
from onepolicy.monitor.monitor import Monitor, Policy
from onepolicy.monitor.step_dump import StepDump

if TYPE_CHECKING:
    from onepolicy.judgement.limits import Limits

logger = logging.getLogger("onepolicy.monitor")


class VerlHook:
    """Feeds a monitor from verl's batches, and writes the rollouts that verl does not. For the driver process."""

    def __init__(
        self,
        path: str | Path,
        *,
        policy: Policy = "warn",
        limits: Limits | str | Path = "bf16",
        dump: str | Path | None = None,
        signal: SignalChecks | None = None,
        about: Mapping[str, str] | None = None,
    ) -> None:
        """Open the monitor's run directory.

        policy: "warn" logs alarms, "mask" also leaves outlier rollouts out of the loss, "halt" ends the training.
        dump: a folder for one Parquet file of rollouts for each step. signal: how often the training signal is checked,
        and what is known of it. about: what the numbers depend on, by name.
        Raises: UsageError, RunError as `Monitor`.
        """
        self.monitor = Monitor(path, policy=policy, limits=limits, about=about)
        self.signal = signal or SignalChecks()
        self._dump = None if dump is None else StepDump(Path(dump), rank=0)
        self._numbers: dict[str, float] = {}
        """of the step that is running"""
        self._said_nothing_left = False

    def scored(self, batch: Any) -> None:
        """Remember what was sampled, before rollout correction takes any of it out of a `DataProto`'s response mask."""
        if MASK in batch.batch:
            batch.batch[SAMPLED] = batch.batch[MASK].clone()

    def step(self, batch: Any, step: int) -> dict[str, float]:
        """Take in a step's `DataProto`; returns the numbers of the step before, to be merged into verl's metrics.

        step: verl's global step. Under the policy "mask" the response mask of outlier rollouts becomes 0 in place.
        Raises: UsageError, AlignmentError if there is nothing to compare; TrainingHalted.
        """
        for name, column in self.take(padded(batch), step).items():
            batch.batch[name] = column
        if SAMPLED in batch.batch:
            del batch.batch[SAMPLED]
        return self.ended(step)

    def take(self, rows: Padded, step: int) -> dict[str, Tensor]:
        """Take in a part of a step; returns the columns that leave outlier rollouts out of the loss, by verl's names.

        Empty unless the policy is "mask" and there are any. Shape: [B, T] each. Raises: as `step`.
        """
        found = scored_batch(rows, step=step)
        keep = self.monitor.update(
            rollout_logprobs=found.rollout_logprobs,
            trainer_logprobs=found.trainer_logprobs,
            sampled=found.sampled,
            loss_mask=found.loss_mask,
            token_ids=found.completion_ids,
            prompt_ids=found.prompt_ids,
            prompt_mask=found.prompt_mask,
            rollout_versions=found.versions,
            trainer_version=found.trainer_version,
            advantages=found.advantages,
            groups=found.prompts,
        )
        kept = keep[:, 0] != 0
        if self._dump is not None:
            self._dump.add(found, kept)
        for name, value in self.signal.look(rows, step=step).items():
            self._numbers[name] = max(value, self._numbers.get(name, 0.0))
        return {} if bool(kept.all()) else self._left_out(rows.tensors, kept)

    def ended(self, step: int) -> dict[str, float]:
        """End a step; returns the numbers of the one before. Raises: TrainingHalted."""
        if self._dump is not None:
            self._dump.write(step)
        numbers, self._numbers = self._numbers, {}
        return self.monitor.step(step) | numbers

    def close(self) -> None:
        """Look at the last step. Raises: TrainingHalted."""
        self.monitor.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.monitor.__exit__(kind, error, traceback)

    def _left_out(self, columns: dict[str, Tensor], kept: Tensor) -> dict[str, Tensor]:
        """The response mask without these rollouts, or advantages of 0 if that would leave nothing to divide by."""
        mask = columns[MASK] * kept[:, None]
        if ADVANTAGES not in columns or bool(mask.any()):
            return {MASK: mask}
        if not self._said_nothing_left:
            logger.warning(
                "every rollout of a step is an outlier. Their advantages are 0 and their response masks are left, as "
                "verl's loss would divide by 0 tokens. This is not said again."
            )
        self._said_nothing_left = True
        return {ADVANTAGES: torch.zeros_like(columns[ADVANTAGES])}
