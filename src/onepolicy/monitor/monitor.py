"""The monitor: at every step of a training, are the rollout and the trainer policy the same?"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import torch
import torch.distributed as dist
from torch import Tensor

from onepolicy.errors import UsageError
from onepolicy.judgement.limits import Limits
from onepolicy.judgement.load import PRESETS, load_limits
from onepolicy.monitor.arguments import about_of, number_of, path_of
from onepolicy.monitor.batch import Batch, Given, Groups, Numbers, batch_of
from onepolicy.monitor.evidence import EVERY, Kept
from onepolicy.monitor.layout import FAILED
from onepolicy.monitor.notices import halt
from onepolicy.monitor.past import Asked
from onepolicy.monitor.ranks import Pending, Ranks
from onepolicy.monitor.recorder import Recorder, Seen, Watching
from onepolicy.monitor.standing import decides
from onepolicy.monitor.sums import DeviceSums
from onepolicy.numerics.steps.summary import CLUSTERS
from onepolicy.records.step import Alarm
from onepolicy.records.verdict import Status

Policy = Literal["warn", "mask", "halt"]
POLICIES = ("warn", "mask", "halt")


class Monitor:
    """Takes the tensors that a trainer already has, on their device, and says how far the two policies are apart.

    `update` once for each micro-batch, `step` once at the end of each step, `close` at the end of the training; or as a
    context manager. Nothing in `update` waits for the device, and what `step` decides is about the step before.
    """

    def __init__(
        self,
        run: str | Path,
        *,
        policy: Policy = "warn",
        limits: Limits | str | Path = Limits(),
        about: Mapping[str, str] | None = None,
        group: dist.ProcessGroup | None = None,
        watch: Watching | None = None,
    ) -> None:
        """Open the folder; every rank does, and the first one writes.

        policy: "warn" logs alarms, "mask" also leaves outlier rollouts out of the loss, "halt" ends the training.
        limits: a preset's name, a YAML file or `Limits`. about: what a change is named after, such as
        {"rollout_engine": "vllm 0.32.0"}. group: the ranks whose steps are one; all of torch.distributed by default.
        Raises: UsageError, or RunError if the folder holds something else or cannot be written to.
        """
        if policy not in POLICIES:
            raise UsageError(f"there is no policy {policy!r}. Policies: {', '.join(POLICIES)}.")
        self.path = path_of(run)
        self.policy = policy
        self.limits = limits if isinstance(limits, Limits) else load_limits(str(limits))
        self._about = about_of(about)
        self._ranks = Ranks(group)
        name = str(limits) if str(limits) in PRESETS else self.limits.model_dump_json()
        asked = Asked(path=self.path, policy=policy, limits=self.limits, limits_name=name, about=self._about)
        self._recorder = Recorder(asked, self._ranks, watch)
        self._sums: DeviceSums | None = None
        self._kept = Kept()
        self._before: Seen | None = None
        self._begun = 0
        """steps of this process"""
        self._number = self._recorder.last_step
        self._accepted = False
        self._handed_over = False
        """whether the step that is running has a micro-batch"""
        self._closed = False
        self.numbers: dict[str, float] = {}
        """of the last step that was looked at"""

    @property
    def status(self) -> Status:
        """pass: closed, every step within its limits, and nothing failed. fail: an alarm decided. Else unknown."""
        return self._recorder.standing.status

    @property
    def why(self) -> str:
        """What the status follows from."""
        return self._recorder.standing.why

    def update(  # noqa: PLR0913 - one name for each tensor that a trainer has
        self,
        *,
        rollout_logprobs: Tensor,
        trainer_logprobs: Tensor,
        sampled: Tensor,
        loss_mask: Tensor | None = None,
        token_ids: Tensor | None = None,
        prompt_ids: Tensor | None = None,
        prompt_mask: Tensor | None = None,
        rollout_versions: Numbers | None = None,
        trainer_version: int | None = None,
        advantages: Tensor | None = None,
        groups: Groups | None = None,
        tags: Sequence[str] | None = None,
    ) -> Tensor:
        """Take in a micro-batch of B rollouts; returns what the loss is to be multiplied with.

        Shape: logprobs [B, T] in nats, entry [b, t] of token t; `sampled` [B, T], true at the tokens that the rollout
        policy produced; `loss_mask` and `token_ids` [B, T]; `prompt_ids` and `prompt_mask` [B, P]; `rollout_versions`
        (negative or None where unknown), `advantages`, `groups` (a number or a name for each prompt, the same on all
        ranks) and `tags` [B]. Nothing is kept of a rollout without `token_ids`.
        -> [B, 1] in the type of `trainer_logprobs`: 1, or 0 for an outlier rollout under the policy "mask".
        Raises: UsageError, AlignmentError at the first call if the shapes or types do not fit; later they are a failure
        of the monitor, which never ends a training.
        """
        self._check_open()
        given = Given(
            rollout_logprobs=rollout_logprobs,
            trainer_logprobs=trainer_logprobs,
            sampled=sampled,
            loss_mask=loss_mask,
            token_ids=token_ids,
            prompt_ids=prompt_ids,
            prompt_mask=prompt_mask,
            rollout_versions=rollout_versions,
            trainer_version=trainer_version,
            advantages=advantages,
            groups=groups,
            tags=tags,
        )
        with torch.inference_mode(False), torch.no_grad():  # what inference mode makes cannot be changed outside of it
            batch = self._checked(given)
            self._handed_over = True
            if batch is not None:
                with self._recorder.trying("take in a micro-batch"):
                    return self._taken(batch, given)
            with self._recorder.trying("say what is kept of a micro-batch"):
                return _all_kept(trainer_logprobs)
            return torch.ones(1, 1)

    def step(self, number: int | None = None, *, about: Mapping[str, str] | None = None) -> dict[str, float]:
        """End a step; returns the numbers of the step before, which are empty at the first.

        number: of the step, else one more than the last. about: what the trainer says of this step, over what it said
        at the start. What is neither is a failure of the monitor. Raises: TrainingHalted under the policy "halt", on
        every rank, if the step before decided.
        """
        self._check_open()
        before, self._before = self._before, self._ended(number, about)
        if before is None:
            return {}
        self.numbers, alarms = self._recorder.take(before)
        self._halt_if(alarms)
        return dict(self.numbers)

    def close(self) -> None:
        """Look at the last step and write the end marker; what was handed over since it is a step of its own.

        Raises: TrainingHalted as `step` does.
        """
        if self._closed:
            return
        alarms = self._last()
        if self._handed_over or self._ranks.size > 1:  # among several ranks all take part, or none
            self._before = self._ended(None, None, closing=True)
            alarms += self._last()
        self._end(closed=True)
        if self.policy == "halt" and any(map(decides, alarms)):
            raise halt(list(filter(decides, alarms)), self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        elif not self._closed:  # other ranks may be gone: nothing is waited for
            self._end(closed=False, why=f"it ended with {kind.__name__}: {error}")

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError(f"the monitor of {self.path} is closed. Make another one to go on with the same folder.")

    def _checked(self, given: Given) -> Batch | None:
        """None if it does not fit, once an earlier one did."""
        first = self._ranks.rank * CLUSTERS // self._ranks.size + self._kept.rollouts
        if not self._accepted:
            batch = batch_of(given, first_group=first)
            self._accepted = True
            return batch
        with self._recorder.trying("read a micro-batch"):
            return batch_of(given, first_group=first)
        return None

    def _taken(self, batch: Batch, given: Given) -> Tensor:
        if self._sums is None:
            self._sums = DeviceSums(batch.compared.device)
        masks = self.policy == "mask"
        scores = self._sums.add(batch, worst_rollout_kl=self.limits.worst_rollout_kl, masks=masks)
        if batch.ids is not None:
            self._kept.add(batch, scores, sampling=self._samples)
        self._kept.name(batch, _names(given, batch.size))
        keep = ~scores.outlier if masks else torch.ones_like(scores.outlier)
        return keep[:, None].to(given.trainer_logprobs.dtype)

    @property
    def _samples(self) -> bool:
        """Whether some rollouts of this step are kept whatever they show."""
        return self._begun % EVERY == 0

    def _ended(self, number: int | None, about: Mapping[str, str] | None, *, closing: bool = False) -> Seen:
        """Send this step's vector off and begin the next step."""
        self._number += 1
        numbered, words = False, dict(self._about)
        if number is not None:
            with self._recorder.trying("take the number of a step"):
                self._number, numbered = number_of(number), True
        with self._recorder.trying("take what is said of a step"):
            words |= about_of(about)
        # as long as nothing was handed over, no device is known
        sums = DeviceSums(torch.device("cpu")) if self._sums is None else self._sums
        vector = sums.take()
        if self._recorder.standing.failures:
            vector[FAILED] = 1
        seen = Seen(
            step=self._number,
            time=time.time(),
            about=words,
            pending=self._sent(vector),
            kept=self._kept,
            sampling=self._samples,
            numbered=numbered,
            closing=closing,
        )
        self._handed_over = False
        self._kept = Kept()
        self._begun += 1
        return seen

    def _sent(self, vector: Tensor) -> Pending | None:
        """None if it could not be sent; among several ranks that is torch's error, as the others wait for it."""
        if self._ranks.size > 1:
            return self._ranks.start(vector)
        with self._recorder.trying("send a step to the host"):
            return self._ranks.start(vector)
        return None

    def _last(self) -> tuple[Alarm, ...]:
        """Look at the step that was not looked at yet."""
        before, self._before = self._before, None
        if before is None:
            return ()
        numbers, alarms = self._recorder.take(before)
        self.numbers = numbers or self.numbers
        return alarms

    def _halt_if(self, alarms: tuple[Alarm, ...]) -> None:
        deciding = [alarm for alarm in alarms if decides(alarm)]
        if self.policy != "halt" or not deciding:
            return
        deciding += filter(decides, self._last())  # the step that was running may name what this one only measured
        self._end(closed=True)
        raise halt(deciding, self.path)

    def _end(self, *, closed: bool, why: str = "") -> None:
        self._closed = True
        self._recorder.finish(closed=closed, why=why)


def _all_kept(trainer_logprobs: object) -> Tensor:
    if not isinstance(trainer_logprobs, Tensor) or not trainer_logprobs.ndim:
        return torch.ones(1, 1)
    return torch.ones(len(trainer_logprobs), 1, dtype=trainer_logprobs.dtype, device=trainer_logprobs.device)


def _names(given: Given, rollouts: int) -> list[tuple[str, str]]:
    """Name of the prompt group and tag of each rollout, empty where the host does not know one."""
    groups: Sequence[object] = [""] * rollouts
    if given.groups is not None and not isinstance(given.groups, Tensor):
        groups = given.groups
    tags = given.tags or [""] * rollouts
    return [(group if isinstance(group, str) else "", str(tag)) for group, tag in zip(groups, tags, strict=True)]
