"""Which rollouts are kept in full: a few of every so many steps, and the worst of a step that raised an alarm."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import pad

from onepolicy.monitor.batch import UNKNOWN_LAG, Batch, on_device
from onepolicy.monitor.folder import ROLLOUT, TRAINER
from onepolicy.monitor.sums import Scores
from onepolicy.records.reading import ReadingRow
from onepolicy.records.rollout import Rollout, Span
from onepolicy.records.tokens import TokenState, digest_of_ids, states_of

ROWS = 8
"""rollouts that are kept of a step"""
EVERY = 50
"""steps between two samples"""
MOST_SAMPLES = 64
MOST_ALARMS = 64
"""steps of either kind that are kept, at most, over the whole training"""

Rows = dict[str, Tensor]
"""columns of some rollouts, [K] or [K, T] or [K, P], on the device"""
HostRow = dict[str, Any]
"""the same of one rollout, on the host"""


@dataclass(slots=True, kw_only=True)
class Kept:
    """A step's candidates on the device; no more than `ROWS` of each kind, whatever the step's size."""

    worst: Rows | None = None
    sample: Rows | None = None
    names: list[tuple[str, str]] = field(default_factory=list)
    """[rollouts so far] name of the prompt group and tag, empty where there is none"""
    rollouts: int = 0

    def add(self, batch: Batch, scores: Scores, *, sampling: bool) -> None:
        """Take in a micro-batch that has token ids. Nothing waits for the device."""
        if not batch.compared.numel():
            return
        rows = _rows(batch, scores, first=self.rollouts)
        self.worst = _worst_of(rows if self.worst is None else _joined(self.worst, rows))
        room = ROWS - (len(self.sample["score"]) if self.sample is not None else 0)
        if sampling and room:
            chosen = sorted(random.Random(self.rollouts).sample(range(batch.size), min(room, batch.size)))  # noqa: S311
            picked = _picked(rows, on_device(chosen, batch.compared.device))
            self.sample = picked if self.sample is None else _joined(self.sample, picked)

    def name(self, batch: Batch, names: list[tuple[str, str]]) -> None:
        """Remember what the host alone knows of a micro-batch, and count it."""
        self.names += names
        self.rollouts += batch.size


def on_host(rows: Rows | None, names: list[tuple[str, str]]) -> list[HostRow]:
    """The rows one by one, worst first; waits for the device."""
    if rows is None:
        return []
    host = {name: column.cpu().numpy() for name, column in rows.items()}
    found = [{name: column[row] for name, column in host.items()} for row in range(len(host["score"]))]
    for row in found:
        group, tag = names[int(row["number"])] if names else ("", "")
        row["name"], row["tag"] = group or f"group-{int(row['group'])}", tag
    return found


def as_records(
    rows: list[HostRow], *, step: int, kept: str, about: Mapping[str, str]
) -> tuple[list[Rollout], list[Span], dict[str, list[ReadingRow]]]:
    """Rows -> rollouts, spans and both readings; kept: "sample" or "alarm"."""
    rollouts, spans = [], []
    readings: dict[str, list[ReadingRow]] = {ROLLOUT: [], TRAINER: []}
    for row in rows:
        prompt, length = _prompt(row), _length(row)
        rollout = _rollout(row, prompt, length, tags={"step": str(step), "kept": kept} | dict(about))
        rollouts.append(rollout)
        spans.append(
            Span(
                rollout_id=rollout.rollout_id,
                start=len(prompt),
                end=len(rollout.token_ids),
                weight_version=_version(int(row["lag"])),
            )
        )
        for name, column in ((ROLLOUT, "p"), (TRAINER, "q")):
            readings[name].append(_reading(rollout, row[column][:length], row["compared"][:length], len(prompt)))
    return rollouts, spans, readings


def _rows(batch: Batch, scores: Scores, *, first: int) -> Rows:
    assert batch.ids is not None
    score = torch.where(scores.invalid, torch.inf, scores.mean_k3)
    number = first + torch.arange(batch.size, device=score.device)
    rows = {
        "score": score,
        "number": number,
        "group": batch.groups,
        "lag": batch.lags,
        "p": batch.rollout_logprobs,
        "q": batch.trainer_logprobs,
        "compared": batch.compared,
        "sampled": batch.sampled,
        "loss_mask": batch.loss_mask,
        "ids": batch.ids,
        "prompt": batch.ids[:, :0] if batch.prompt_ids is None else batch.prompt_ids,
    }
    there = torch.ones_like(rows["prompt"], dtype=torch.bool) if batch.prompt_mask is None else batch.prompt_mask
    return rows | {"prompt_there": there}


def _worst_of(rows: Rows) -> Rows:
    score = rows["score"]
    return _picked(rows, score.topk(min(ROWS, score.shape[0])).indices)


def _picked(rows: Rows, index: Tensor) -> Rows:
    return {name: column.index_select(0, index) for name, column in rows.items()}


def _joined(one: Rows, other: Rows) -> Rows:
    """One below the other, the shorter columns with padding that no mask points at."""
    joined = {}
    for name, column in one.items():
        pair = (column, other[name])
        if column.ndim == 2:
            width = max(column.shape[1], other[name].shape[1])
            pair = (_widened(column, width), _widened(other[name], width))
        joined[name] = torch.cat(pair)
    return joined


def _widened(column: Tensor, width: int) -> Tensor:
    return pad(column, (0, width - column.shape[1])) if column.shape[1] < width else column


def _prompt(row: HostRow) -> npt.NDArray[np.int32]:
    prompt: npt.NDArray[np.int32] = row["prompt"][row["prompt_there"]].astype(np.int32)
    return prompt


def _length(row: HostRow) -> int:
    """Up to the last token that the policy sampled or the trainer trains on; what follows is padding."""
    used = np.flatnonzero(row["sampled"] | row["loss_mask"])
    return int(used[-1]) + 1 if len(used) else 0


def _rollout(row: HostRow, prompt: npt.NDArray[np.int32], length: int, tags: dict[str, str]) -> Rollout:
    none = np.zeros(len(prompt), dtype=np.bool_)
    rollout_id = f"step-{int(tags['step']):06d}-{uuid4().hex[:12]}"
    return Rollout(
        rollout_id=rollout_id,
        prompt_id=digest_of_ids(prompt) if len(prompt) else row["name"],
        trajectory_id=rollout_id,
        token_ids=np.concatenate([prompt, row["ids"][:length].astype(np.int32)]),
        sampled=np.concatenate([none, row["sampled"][:length]]),
        loss_mask=np.concatenate([none, row["loss_mask"][:length]]),
        group=row["name"],
        tags=tags | ({"tag": row["tag"]} if row["tag"] else {}),
    )


def _version(lag: int) -> str:
    """Whose weights sampled, seen from the trainer: evidence is of many steps, and each has its own trainer."""
    if lag == UNKNOWN_LAG:
        return ""
    if lag < 0:
        return f"{-lag} ahead of the trainer's"
    return "the trainer's" if lag == 0 else f"{lag} behind the trainer's"


def _reading(rollout: Rollout, logprobs: Any, compared: Any, prompt: int) -> ReadingRow:
    states = np.full(len(rollout.token_ids), TokenState.MASKED, dtype=np.uint8)
    states[prompt:] = np.where(compared, states_of(logprobs), TokenState.MASKED)
    values = np.full(len(states), np.nan, dtype=np.float32)
    values[prompt:] = logprobs
    values[states != TokenState.VALUE] = np.nan
    return ReadingRow(rollout_id=rollout.rollout_id, digest=rollout.digest, logprobs=values, states=states)
