"""A verl batch as the monitor and the dump take it, checked where verl would go on without a word.

Two forms come here. A `DataProto`: prompts padded on the left, responses on the right, `attention_mask` over both. And
the columns of the newer trainer's queue (`queue.py`), padded there. verl is not imported.

Source: verl-project/verl:verl/protocol.py, verl/trainer/ppo/ray_trainer.py (0.9.1).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from onepolicy.errors import AlignmentError, UsageError
from onepolicy.monitor.batch import UNKNOWN_VERSION
from onepolicy.monitor.step_dump import ScoredBatch

ROLLOUT, TRAINER, MASK, ADVANTAGES = "rollout_log_probs", "old_log_probs", "response_mask", "advantages"
SCORES = ("token_level_scores", "rm_scores")
"""the first that is there"""
NAMES = ("uid", "min_global_steps")
SAMPLED = "onepolicy_sampled"
"""column that we add to a batch: its response mask before rollout correction takes tokens out of it"""
CALCULATE = "actor_rollout_ref.rollout.calculate_log_probs"
BYPASS = "algorithm.rollout_correction.bypass_mode"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Padded:
    """B rows of verl's columns, by verl's names."""

    tensors: dict[str, Tensor]
    """`prompts` and `prompt_mask` [B, P]; `responses`, `response_there` (1 at a token) and the others [B, T]"""
    names: dict[str, Sequence[Any]] = field(default_factory=dict)
    """[B] each of `NAMES`, as far as they are known"""
    is_split: bool = False
    """whether a completion may be several rows (outputs of an agent loop), which a sum over a prompt counts each"""


def padded(batch: Any) -> Padded:
    """The columns of a `DataProto`, not copied. Raises: UsageError, AlignmentError if they are no whole batch."""
    tensors = {name: batch.batch[name] for name in batch.batch.keys()}  # noqa: SIM118 - a TensorDict iterates over rows
    for name in ("prompts", "responses", "attention_mask"):
        if name not in tensors:
            raise UsageError(f"the batch has no `{name}`: give the whole DataProto of the step, not a part of it.")
        if tensors[name].is_nested:
            raise UsageError(f"`{name}` is a nested tensor; give a padded DataProto, or attach to the trainer itself.")
    prompt, total = tensors["prompts"].shape[1], tensors["prompts"].shape[1] + tensors["responses"].shape[1]
    attention = tensors["attention_mask"]
    if attention.shape[-1] != total:
        raise AlignmentError(
            f"`attention_mask` has {attention.shape[-1]} columns, and prompts and responses have {total} together."
        )
    tensors |= {"prompt_mask": attention[:, :prompt], "response_there": attention[:, prompt:]}
    tensors.setdefault(MASK, tensors["response_there"])  # as verl's compute_response_mask
    others = batch.non_tensor_batch
    return Padded(tensors=tensors, names={name: list(others[name]) for name in NAMES if name in others})


def scored_batch(rows: Padded, *, step: int) -> ScoredBatch:
    """The same as the monitor and the dump take it.

    step: verl's global step; the weights that scored are those of the step before.
    Raises: UsageError if a side is absent or a copy of the other; AlignmentError if shapes differ.
    """
    columns = rows.tensors
    _check(columns)
    mask = columns[MASK]
    versions = rows.names.get("min_global_steps", [None] * len(mask))
    scores = next((columns[name] for name in SCORES if name in columns), None)
    return ScoredBatch(
        prompt_ids=columns["prompts"],
        prompt_mask=columns["prompt_mask"],
        completion_ids=columns["responses"],
        completion_mask=columns["response_there"],
        sampled=columns.get(SAMPLED, mask),
        loss_mask=mask,
        rollout_logprobs=columns[ROLLOUT],
        trainer_logprobs=columns[TRAINER],
        advantages=_shared(columns.get(ADVANTAGES), mask),
        rewards=None if scores is None else scores.sum(dim=1),
        versions=torch.tensor([_version(version) for version in versions], dtype=torch.int64, device=mask.device),
        trainer_version=step - 1,
        prompts=[str(uid) for uid in rows.names["uid"]] if "uid" in rows.names else None,
    )


def _check(columns: dict[str, Tensor]) -> None:
    if ROLLOUT not in columns:
        raise UsageError(
            f"the batch has no `{ROLLOUT}`, so there is nothing to compare: the engine was not asked for them. Set "
            f"{CALCULATE}=True."
        )
    if TRAINER not in columns:
        raise UsageError(
            f"the batch has no `{TRAINER}`: call the hook after verl has computed them (docs/verl.md has the line)."
        )
    for name in (ROLLOUT, TRAINER, MASK, SAMPLED, ADVANTAGES):
        _check_shape(name, columns.get(name), columns["responses"])
    if _is_same_memory(columns[ROLLOUT], columns[TRAINER]):
        raise UsageError(
            f"`{TRAINER}` are `{ROLLOUT}` themselves: in bypass mode the trainer scores nothing before the update, so "
            f"whether the two policies agree is unknown. Set {BYPASS}=False to compare them."
        )


def _check_shape(name: str, column: Tensor | None, responses: Tensor) -> None:
    if column is None:
        return
    if column.is_nested:
        raise UsageError(f"`{name}` is a nested tensor; give a padded DataProto, or attach to the trainer itself.")
    if column.shape != responses.shape:
        raise AlignmentError(
            f"`{name}` has the shape {list(column.shape)} and `responses` {list(responses.shape)}; entry [b, t] of "
            "both belongs to token t of response b."
        )


def _is_same_memory(a: Tensor, b: Tensor) -> bool:
    return a is b or (a.numel() > 0 and a.data_ptr() == b.data_ptr())


def _version(version: Any) -> int:
    """`UNKNOWN_VERSION` of an engine that says none."""
    if version is None or (isinstance(version, float) and math.isnan(version)):
        return UNKNOWN_VERSION
    return int(version)


def _shared(advantages: Tensor | None, mask: Tensor) -> Tensor:
    """[B] the advantage that all trained tokens of a rollout have; NaN if they differ (GAE) or there are none."""
    if advantages is None or not mask.shape[1]:
        return torch.full((len(mask),), torch.nan, dtype=torch.float64, device=mask.device)
    there = mask != 0
    low = torch.where(there, advantages, torch.inf).amin(dim=1)
    high = torch.where(there, advantages, -torch.inf).amax(dim=1)
    return torch.where(low == high, low, torch.nan).to(torch.float64)
