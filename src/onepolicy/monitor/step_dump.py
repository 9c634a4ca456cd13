"""The file that trainers do not write: every rollout of a step with its ids and both sides' logprobs.

Each step and rank is one Parquet file with one row for each rollout, in the columns that `onepolicy import` reads
without being told anything.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from torch import Tensor

from onepolicy.errors import RunError
from onepolicy.records.files import write_atomically
from onepolicy.records.tokens import digest_of_ids

logger = logging.getLogger("onepolicy.monitor")

SCHEMA = pa.schema(
    [
        pa.field("rollout_id", pa.string(), nullable=False),
        pa.field("prompt_id", pa.string(), nullable=False),
        pa.field("prompt_ids", pa.list_(pa.int32()), nullable=False),
        pa.field("completion_ids", pa.list_(pa.int32()), nullable=False),
        pa.field("sampled", pa.list_(pa.bool_()), nullable=False),
        pa.field("loss_mask", pa.list_(pa.bool_()), nullable=False),
        pa.field("rollout_logprobs", pa.list_(pa.float32()), nullable=False),
        pa.field("trainer_logprobs", pa.list_(pa.float32()), nullable=False),
        pa.field("step", pa.int64(), nullable=False),
        pa.field("weight_version", pa.string()),
        pa.field("trainer_version", pa.string(), nullable=False),
        pa.field("reward", pa.float64()),
        pa.field("advantage", pa.float64()),
    ]
)
"""`sampled`, `loss_mask` and the logprobs are of the completion, entry i of token i"""
BY_BATCH = pa.schema([field for field in SCHEMA if field.name not in ("rollout_id", "step")])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScoredBatch:
    """B rollouts as a trainer's loss sees them, on its device: prompts padded on the left, completions on the right."""

    prompt_ids: Tensor
    """[B, P]"""
    prompt_mask: Tensor
    """[B, P]"""
    completion_ids: Tensor
    """[B, T]"""
    completion_mask: Tensor
    """[B, T] the tokens of the completion, whoever wrote them; 0 for padding"""
    sampled: Tensor
    """[B, T] of these, what the policy produced and the trainer scored"""
    loss_mask: Tensor
    """[B, T] of these, what is trained on"""
    rollout_logprobs: Tensor
    """[B, T]"""
    trainer_logprobs: Tensor
    """[B, T]"""
    advantages: Tensor
    """[B] NaN where there is none, or not one for all tokens"""
    rewards: Tensor | None
    """[B] NaN where there is none"""
    versions: Tensor
    """[B] optimizer updates in the weights that sampled, -1 if not known"""
    trainer_version: int
    """optimizer updates in the weights that scored"""
    prompts: Sequence[str] | None = None
    """[B] name of each rollout's prompt; None: the digest of its ids"""


class StepDump:
    """One rank's files. A step that cannot be written is said once and is not written; the training goes on."""

    def __init__(self, folder: Path, *, rank: int) -> None:
        self.folder, self.rank = folder, rank
        self._batches: list[tuple[ScoredBatch, Tensor | None]] = []
        self._failed = False

    def add(self, batch: ScoredBatch, keep: Tensor | None) -> None:
        """Take in a batch of the step that is running; nothing leaves its device before the step ends.

        keep: [B] False where the monitor leaves the rollout out of the loss; None if it leaves none out.
        """
        self._batches.append((batch, keep))

    def write(self, step: int) -> None:
        """Write the step's rollouts as one file."""
        batches, self._batches = self._batches, []
        name = f"step-{step:06d}-rank-{self.rank:04d}"
        columns = [_columns(batch, keep) for batch, keep in batches]
        table = pa.concat_tables([pa.table(found, schema=BY_BATCH) for found in columns])
        ids = pa.array([f"{name}-{i:04d}" for i in range(len(table))])
        steps = pa.array(np.full(len(table), step, dtype=np.int64))
        table = table.append_column("rollout_id", ids).append_column("step", steps).select(SCHEMA.names).cast(SCHEMA)
        try:
            write_atomically(
                self.folder / f"{name}.parquet", lambda temporary: pq.write_table(table, temporary, compression="zstd")
            )
        except (RunError, pa.ArrowException) as error:
            self._say(step, error)

    def _say(self, step: int, error: Exception) -> None:
        if not self._failed:
            logger.warning(
                "step %d is not in the dump: %s The training goes on; later steps are tried again and this is not "
                "said again.",
                step,
                error,
            )
        self._failed = True


def _columns(batch: ScoredBatch, keep: Tensor | None) -> dict[str, Any]:
    """All columns but those that the step gives."""
    host = {name: _host(getattr(batch, name)) for name in _TENSORS}
    rollouts = len(host["completion_ids"])
    prompt, whole = host["prompt_mask"] != 0, host["completion_mask"] != 0
    trained = host["loss_mask"] != 0
    if keep is not None:
        trained = trained & _host(keep)[:, None]
    prompts = batch.prompts or [
        digest_of_ids(ids[there]) for ids, there in zip(host["prompt_ids"], prompt, strict=True)
    ]
    return {
        "prompt_id": prompts,
        "prompt_ids": _lists(host["prompt_ids"], prompt, np.int32),
        "completion_ids": _lists(host["completion_ids"], whole, np.int32),
        "sampled": _lists(host["sampled"] != 0, whole, np.bool_),
        "loss_mask": _lists(trained, whole, np.bool_),
        "rollout_logprobs": _lists(host["rollout_logprobs"], whole, np.float32),
        "trainer_logprobs": _lists(host["trainer_logprobs"], whole, np.float32),
        "weight_version": [None if version < 0 else str(version) for version in host["versions"].tolist()],
        "trainer_version": [str(batch.trainer_version)] * rollouts,
        "reward": _numbers(np.full(rollouts, np.nan) if batch.rewards is None else _host(batch.rewards)),
        "advantage": _numbers(host["advantages"]),
    }


def _lists(values: npt.NDArray[Any], there: npt.NDArray[np.bool_], dtype: npt.DTypeLike) -> pa.ListArray:
    """What is there of each row. Shape: [B, T], [B, T]."""
    offsets = np.concatenate([[0], np.cumsum(there.sum(axis=1))]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values[there].astype(dtype)))


def _numbers(values: npt.NDArray[Any]) -> pa.Array:
    """NaN becomes null."""
    return pa.array(values.astype(np.float64), mask=np.isnan(values))


def _host(tensor: Tensor) -> npt.NDArray[Any]:
    """On the host; what has fewer bits than float32 becomes float32, which holds it exactly."""
    tensor = tensor.detach()
    narrow = tensor.is_floating_point() and tensor.element_size() < 4
    array: npt.NDArray[Any] = (tensor.float() if narrow else tensor).cpu().numpy()
    return array


_TENSORS = (
    "prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "sampled", "loss_mask",
    "rollout_logprobs", "trainer_logprobs", "advantages", "versions",
)  # fmt: skip
