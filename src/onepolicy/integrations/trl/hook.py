"""One line that attaches the monitor to TRL's GRPOTrainer.

What TRL has, and when: a generation batch leaves `_generate_and_score_completions` with the sampling side's logprobs,
if there is a sampling side, and with the trainer's own ones if TRL needs them before the loss. If it does not, the
loss's forward pass is the first that has them, with the same weights. Both places are watched; a rollout is compared
once, in the first of them.

Rollouts that the policy "mask" leaves out get no gradient: the logprobs and entropies that the loss reads are cut from
the graph in their rows, and their advantage is 0. They stay in the loss's denominators, as TRL's own masking of
importance ratios leaves them.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from onepolicy.errors import UsageError
from onepolicy.integrations.trl.needs import MARK, about, check, pad_id, second_engine, whole_number
from onepolicy.monitor.monitor import Monitor, Policy
from onepolicy.monitor.step_dump import ScoredBatch, StepDump

if TYPE_CHECKING:
    from torch import Tensor

    from onepolicy.judgement.limits import Limits

logger = logging.getLogger("onepolicy.monitor")

ROLLOUT, TRAINER = "sampling_per_token_logps", "old_per_token_logps"
GROUPS, VERSIONS, REWARDS, KEEP = (f"onepolicy_{name}" for name in ("groups", "versions", "rewards", "keep"))
"""columns that we add to TRL's batch, which shuffles and splits them with its own"""
SEEN = "onepolicy_seen"
"""in a slice of it that was compared in a loss; it may come again"""
VERSION_FIELD = "weight_version"
"""what a `rollout_func` may return beside its logprobs: one whole number for each rollout"""
Batch = dict[str, Any]
WeightVersion = Callable[[], int | None]


def attach(
    trainer: Any,
    path: str | Path,
    *,
    policy: Policy = "warn",
    limits: Limits | str = "bf16",
    dump: str | Path | None = None,
    weight_version: WeightVersion | None = None,
) -> Monitor:
    """Attach a monitor to a GRPOTrainer, before `train()`; it is closed when the training ends.

    path: the monitor's run directory. dump: a folder for one Parquet file of rollouts for each step and rank.
    weight_version: asked after each generation, says how many optimizer updates the weights have that sampled it, None
    if it does not know. Without it, what `rollout_func` returns as "weight_version" counts, else what TRL last sent to
    its vLLM, else it is not known. The trainer's own version is its global step.
    Raises: UsageError if TRL's version has not what is needed, or if the trainer has no second engine to compare with.
    """
    check(trainer)
    monitor = Monitor(path, policy=policy, limits=limits, about=about(trainer))
    rank = int(trainer.accelerator.process_index)
    hook = Hook(
        trainer,
        monitor,
        masks=policy == "mask",
        dump=None if dump is None else StepDump(Path(dump), rank=rank),
        weight_version=weight_version,
    )
    hook.install()
    return monitor


class Hook:
    """What is between a trainer and its monitor; `install` puts it there."""

    def __init__(
        self,
        trainer: Any,
        monitor: Monitor,
        *,
        masks: bool,
        dump: StepDump | None,
        weight_version: WeightVersion | None,
    ) -> None:
        self.trainer, self.monitor, self.masks, self.dump = trainer, monitor, masks, dump
        self.weight_version = weight_version
        self._in_loss: Batch | None = None
        """the batch whose loss is being computed"""
        self._fed = False
        """whether the monitor was given something in the step that is running"""
        self._numbers: list[dict[str, float]] = []
        """that the trainer has not logged yet"""
        self._next_group = 0
        self._version_failed = False

    def install(self) -> None:
        """Wrap the trainer's methods, and listen to its callbacks."""
        trainer = self.trainer
        generate, score = trainer._generate_and_score_completions, trainer._get_per_token_logps_and_entropies
        loss, log = trainer.compute_loss, trainer.log

        @functools.wraps(generate)
        def generated(inputs: list[Batch]) -> Batch:
            batch: Batch = generate(inputs)
            if trainer.model.training:
                self.generated(inputs, batch)
            return batch

        @functools.wraps(score)
        def scored(*args: Any, **kwargs: Any) -> Any:
            found = score(*args, **kwargs)
            return found if self._in_loss is None else self.scored(*found)

        @functools.wraps(loss)
        def lost(model: Any, inputs: Batch, *args: Any, **kwargs: Any) -> Any:
            with self._loss_of(inputs) as batch:
                return loss(model, batch, *args, **kwargs)

        @functools.wraps(log)
        def logged(logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
            if trainer.model.training:
                self.add_numbers(logs)
            log(logs, *args, **kwargs)

        trainer._generate_and_score_completions, trainer._get_per_token_logps_and_entropies = generated, scored
        trainer.compute_loss, trainer.log = lost, logged
        trainer.add_callback(_callback(self))
        setattr(trainer, MARK, True)

    def generated(self, examples: Sequence[Batch], batch: Batch) -> None:
        """Number the rollouts of a generation batch, and compare them if TRL has scored them already."""
        if ROLLOUT not in batch:
            raise UsageError(
                "TRL's generation batch has no logprobs of the side that sampled, so there is nothing to compare: "
                + second_engine(self.trainer)
            )
        self._number(examples, batch)
        if TRAINER in batch:
            self._compare(batch, batch[TRAINER])

    def scored(self, logprobs: Tensor, entropies: Tensor | None, *rest: Any) -> tuple[Any, ...]:
        """Compare the loss's own logprobs if they are the first; what the loss goes on with."""
        batch = self._in_loss
        assert batch is not None
        if TRAINER not in batch and SEEN not in batch:
            self._compare(batch, logprobs.detach())
            batch[SEEN] = True
        keep = batch.get(KEEP)
        if keep is None:
            return (logprobs, entropies, *rest)
        batch["advantages"] = _rows_of(keep, batch["advantages"], 0.0)
        return (_cut(keep, logprobs), None if entropies is None else _cut(keep, entropies), *rest)

    def step_ended(self, step: int) -> None:
        """Write the dump and let the monitor decide. Raises: TrainingHalted."""
        if not self._fed:  # rollouts that an earlier step has generated, and that were compared there
            return
        self._fed, self._next_group = False, 0
        if self.dump is not None:
            self.dump.write(step)
        self._numbers.append(self.monitor.step(step))

    def add_numbers(self, logs: dict[str, float]) -> None:
        """Put the means over the steps since the last time among what the trainer logs."""
        for name in {name: None for numbers in self._numbers for name in numbers}:
            values = [numbers[name] for numbers in self._numbers if name in numbers]
            logs[name] = sum(values) / len(values)
        self._numbers.clear()

    def ended(self) -> None:
        """The training is over."""
        self.monitor.close()

    @contextmanager
    def _loss_of(self, inputs: Batch) -> Iterator[Batch]:
        """The batch as the loss is to see it. What is found out about it is kept for the next time it is used."""
        if ROLLOUT not in inputs or GROUPS not in inputs:  # an evaluation
            yield inputs
            return
        self._in_loss = dict(inputs)
        try:
            yield self._in_loss
        finally:
            inputs.update({name: self._in_loss[name] for name in (SEEN, KEEP) if name in self._in_loss})
            self._in_loss = None

    def _number(self, examples: Sequence[Batch], batch: Batch) -> None:
        import torch  # noqa: PLC0415 - loaded by the trainer

        device, rollouts = batch["completion_ids"].device, len(batch["completion_ids"])
        accelerator = self.trainer.accelerator
        place = accelerator.process_index * rollouts + torch.arange(rollouts, device=device)
        batch[GROUPS] = self._next_group + place // self.trainer.num_generations
        self._next_group += -(-rollouts * accelerator.num_processes // self.trainer.num_generations)
        batch[VERSIONS] = torch.tensor(self._versions(examples), dtype=torch.int64, device=device)
        if self.dump is not None:
            batch[REWARDS] = torch.tensor(self._rewards(rollouts), dtype=torch.float64, device=device)

    def _compare(self, batch: Batch, trainer_logprobs: Tensor) -> None:
        sampled = batch["completion_mask"]
        if "tool_mask" in batch:
            sampled = sampled * batch["tool_mask"]
        scored = ScoredBatch(
            prompt_ids=batch["prompt_ids"],
            prompt_mask=batch["prompt_mask"],
            completion_ids=batch["completion_ids"],
            completion_mask=_whole(batch["completion_ids"], batch["completion_mask"], pad_id(self.trainer)),
            sampled=sampled,
            loss_mask=sampled,
            rollout_logprobs=batch[ROLLOUT],
            trainer_logprobs=trainer_logprobs,
            advantages=batch["advantages"],
            rewards=batch.get(REWARDS),
            versions=batch[VERSIONS],
            trainer_version=int(self.trainer.state.global_step),
        )
        keep = self._update(scored, batch[GROUPS])[:, 0] != 0
        if self.masks:
            batch[KEEP] = keep
        if self.dump is not None:
            self.dump.add(scored, keep if self.masks else None)
        self._fed = True

    def _update(self, scored: ScoredBatch, groups: Tensor) -> Tensor:
        return self.monitor.update(
            rollout_logprobs=scored.rollout_logprobs,
            trainer_logprobs=scored.trainer_logprobs,
            sampled=scored.sampled,
            token_ids=scored.completion_ids,
            prompt_ids=scored.prompt_ids,
            prompt_mask=scored.prompt_mask,
            rollout_versions=scored.versions,
            trainer_version=scored.trainer_version,
            advantages=scored.advantages,
            groups=groups,
        )

    def _versions(self, examples: Sequence[Batch]) -> list[int]:
        """How many optimizer updates the weights have that sampled each rollout, -1 if not known."""
        if self.weight_version is not None:
            return [whole_number(self._asked(self.weight_version), "`weight_version`")] * len(examples)
        if all(VERSION_FIELD in example for example in examples):
            return [whole_number(example[VERSION_FIELD], f"rollout_func's {VERSION_FIELD!r}") for example in examples]
        sent = getattr(self.trainer, "_last_loaded_step", None) if self.trainer.use_vllm else None
        return [whole_number(sent, "TRL's last sent step")] * len(examples)

    def _asked(self, weight_version: WeightVersion) -> int | None:
        try:
            return weight_version()
        except (OSError, httpx.HTTPError) as error:
            if not self._version_failed:
                logger.warning("the weight version is not known, as asking for it failed: %s", error)
            self._version_failed = True
            return None

    def _rewards(self, rollouts: int) -> list[float]:
        """This rank's rows of the rewards that TRL has just put into its log of completions."""
        columns = self.trainer._logs["rewards"]
        first = self.trainer.accelerator.process_index * rollouts
        everything = rollouts * self.trainer.accelerator.num_processes
        weights = self.trainer.reward_weights.tolist()
        recent = [
            list(columns[name])[-everything:][first : first + rollouts] for name in self.trainer.reward_func_names
        ]
        return [_weighted(row, weights) for row in zip(*recent, strict=True)]


def _callback(hook: Hook) -> Any:
    from transformers import TrainerCallback  # noqa: PLC0415 - loaded by the trainer

    class MonitorCallback(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            hook.step_ended(int(state.global_step))

        def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            hook.ended()

    return MonitorCallback()


def _whole(ids: Tensor, mask: Tensor, padding: int) -> Tensor:
    """[B, T] the tokens of each completion. One whose mask is all 0 was truncated, so it ends in no padding token."""
    import torch  # noqa: PLC0415 - loaded by the trainer

    masked = mask != 0
    to_the_last = (ids != padding).flip(1).cumsum(dim=1).flip(1) > 0
    return torch.where(masked.any(dim=1, keepdim=True), masked, to_the_last)


def _cut(keep: Tensor, values: Tensor) -> Tensor:
    """The same numbers, without a way back for the gradient in the rows that are not kept. Shape: [B], [B, T]."""
    import torch  # noqa: PLC0415 - loaded by the trainer

    return torch.where(keep[:, None], values, values.detach())


def _rows_of(keep: Tensor, values: Tensor, other: float) -> Tensor:
    """`other` in the rows that are not kept. Shape: [B], [B] or [B, T]."""
    return values.masked_fill(~(keep if values.ndim == 1 else keep[:, None]), other)


def _weighted(rewards: Sequence[float], weights: Sequence[float]) -> float:
    """Sum of a rollout's rewards as TRL weighs them; NaN if no function gave one."""
    there = [weight * reward for reward, weight in zip(rewards, weights, strict=True) if not math.isnan(reward)]
    return sum(there) if there else math.nan
