"""A batch of verl's newer trainer, whose columns lie in a queue (`transfer_queue`) as nested tensors without padding.

Rows that verl appends to make a batch divisible are no rollouts: their tag says `is_padding`.

Source: verl-project/verl:verl/trainer/ppo/v1/trainer_base.py, verl/trainer/ppo/v1/agent_loop_tq.py,
verl/trainer/ppo/padding_utils.py (0.9.1); the queue's kv_batch_get and kv_batch_put. A key is uid_session_output.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from onepolicy.integrations.verl.rollouts import ADVANTAGES, MASK, ROLLOUT, SAMPLED, SCORES, TRAINER, Padded

BEFORE = ("prompts", "responses", MASK, ROLLOUT, TRAINER, "uid", "ref_log_prob", *SCORES)
AFTER = (MASK, ADVANTAGES)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Queued:
    """The rollouts of a queued batch, read before rollout correction; `rows` reads what came after it."""

    keys: list[str]
    partition: str
    tags: list[dict[str, Any]]
    before: Any
    """[B] TensorDict of the columns of `BEFORE` that there are"""

    @classmethod
    def before_correction(cls, batch: Any) -> Self:
        """batch: a `KVBatchMeta` whose old logprobs are in the queue."""
        real = [place for place, tag in enumerate(batch.tags) if not tag.get("is_padding", False)]
        keys = [batch.keys[place] for place in real]
        return cls(
            keys=keys,
            partition=batch.partition_id,
            tags=[batch.tags[place] for place in real],
            before=_got(keys, batch.partition_id, BEFORE),
        )

    def rows(self) -> Padded:
        """The columns, padded on the right, with masks and advantages as they are now."""
        after = _got(self.keys, self.partition, AFTER)
        columns = {name: _padded(self.before[name]) for name in BEFORE if name in self.before and name != "uid"}
        columns[SAMPLED] = columns[MASK]
        columns |= {name: _padded(after[name]) for name in AFTER if name in after}
        columns["prompt_mask"] = _there(self.before["prompts"])
        columns["response_there"] = _there(self.before["responses"])
        versions = [tag.get("min_global_steps") for tag in self.tags]
        return Padded(
            tensors=columns,
            names={"uid": _names(self.before["uid"]), "min_global_steps": versions},
            is_split=any(not key.endswith("_0") for key in self.keys),
        )

    def put(self, columns: dict[str, Tensor]) -> None:
        """Write padded columns back, each row as long as its response. Shape: [B, T]."""
        if not columns:
            return
        fields = {name: _nested(column, self.before["responses"]) for name, column in columns.items()}
        made = type(self.before)(fields, batch_size=len(self.keys))
        _queue().kv_batch_put(keys=self.keys, partition_id=self.partition, fields=made)


def _queue() -> Any:
    return importlib.import_module("transfer_queue")  # where there is such a batch, verl has loaded it


def _got(keys: list[str], partition: str, names: Sequence[str]) -> Any:
    return _queue().kv_batch_get(keys=keys, partition_id=partition, select_fields=list(names))


def _padded(column: Tensor) -> Tensor:
    return column.to_padded_tensor(0) if column.is_nested else column


def _there(column: Tensor) -> Tensor:
    """1 at each token of a column, padded. Shape: nested [B, *] -> [B, T]."""
    ones: Tensor = torch.ones_like(column)
    return _padded(ones)


def _nested(column: Tensor, like: Tensor) -> Tensor:
    lengths = _there(like).sum(dim=1).tolist()
    rows = [row[:length] for row, length in zip(column, lengths, strict=True)]
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


def _names(column: Any) -> list[str]:
    return [str(name) for name in (column.tolist() if hasattr(column, "tolist") else column)]
