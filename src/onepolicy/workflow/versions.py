"""Whose weights sampled rollouts, and whose scored them."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from onepolicy.dumps.block import NO_STEP, RecordedBlock, lags_of
from onepolicy.records.parquet import RolloutBlock
from onepolicy.records.verdict import Status, Verdict

STEP = "step"
"""the tag of a rollout that says at which step of a training it was recorded"""


@dataclass(slots=True, kw_only=True)
class VersionsByStep:
    """Steps of a training each have weights of their own: only several versions within one step are a mixture."""

    found: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """step -> weight versions; the step is empty where none is known"""

    def add(self, block: RolloutBlock, version_of: Mapping[str, str]) -> None:
        """Take in the rollouts of a run whose versions are known, with their step as a tag."""
        if version_of:
            steps = {text: str(json.loads(text).get(STEP, "")) for text in set(block.tags)}
            versions = (version_of.get(rollout_id, "") for rollout_id in block.rollout_ids)
            self.add_names((steps[text] for text in block.tags), versions)

    def add_names(self, steps: Iterable[str], versions: Iterable[str]) -> None:
        """Take in the step and the version of some rollouts; an empty version is none."""
        for step, version in zip(steps, versions, strict=True):
            if version:
                self.found[step].add(version)

    @property
    def one_each(self) -> bool:
        """Whether there are steps, and each has one version."""
        return "" not in self.found and all(len(versions) == 1 for versions in self.found.values())


@dataclass(slots=True, kw_only=True)
class Versions:
    """Weight versions as recorded files name them; `add` is the only thing that changes it."""

    current: bool = False
    """whether the trainer's logprobs are of the weights that are being trained"""
    names: dict[str, str] = field(default_factory=dict)
    """rollout id -> the version that sampled it"""
    by_step: VersionsByStep = field(default_factory=VersionsByStep)
    known: int = 0
    """rollouts of which both sides' versions are"""
    behind: int = 0
    """of these sampled by other weights than those that scored them"""
    example: tuple[str, str] = ("", "")
    """the versions that sampled and scored the first of them"""

    def add(self, block: RecordedBlock) -> None:
        """Take in a block."""
        if any(block.weight_versions):
            named = zip(block.rollouts.rollout_ids, block.weight_versions, strict=True)
            self.names.update((rollout_id, version) for rollout_id, version in named if version)
            steps = ["" if step == NO_STEP else str(step) for step in block.steps.tolist()]
            self.by_step.add_names(steps, block.weight_versions)
        lags = lags_of(block)
        self.known += int(np.count_nonzero(lags >= 0))
        behind = np.flatnonzero(lags > 0)
        if len(behind) and not self.behind:
            self.example = block.weight_versions[behind[0]], block.trainer_versions[behind[0]]
        self.behind += len(behind)

    def add_scored(self, rollout_ids: Sequence[str], versions: Sequence[str]) -> None:
        """Take in which weights scored some rollouts, where other files say it than those that say what sampled."""
        for rollout_id, scored in zip(rollout_ids, versions, strict=True):
            sampled = self.names.get(rollout_id, "")
            if sampled and scored:
                self.known += 1
                if not self.behind and sampled != scored:
                    self.example = sampled, scored
                self.behind += sampled != scored

    @property
    def stale(self) -> str:
        """What to say if rollouts were sampled by other weights than those that scored them; else nothing."""
        if not self.behind:
            return ""
        sampled, scored = self.example
        return (
            f"{self.behind} of {self.known} rollouts were sampled by other weights than those that scored them (such "
            f"as version {sampled[:40]} and {scored[:40]}): a number over them is staleness and mismatch together. See "
            "them apart with: onepolicy timeline FILES"
        )

    def verdicts(self) -> list[Verdict]:
        """Unknown if rollouts are stale; a note if staleness cannot be told apart; nothing if no file says."""
        if self.stale:
            return [_verdict(Status.UNKNOWN, self.stale)]
        if self.current:
            why = "the trainer's logprobs are of the weights being trained: mismatch and staleness are one number."
            return [_verdict(Status.UNKNOWN, why, required=False)]
        if self.known:
            return [_verdict(Status.PASS, f"{self.known} rollouts were scored by the weights that sampled them.")]
        return []


def _verdict(status: Status, message: str, *, required: bool = True) -> Verdict:
    return Verdict(check="same_weights", status=status, required=required, message=message)
