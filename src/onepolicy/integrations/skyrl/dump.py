"""What SkyRL writes with trainer.dump_data_batch: `dumped_data/global_step_{N}_training_input.pkl`.

A pickled `TrainingInputBatch`: `sequences` and `attention_mask` [B, L]; `response_mask`, `loss_mask`,
`rollout_logprobs`, `action_log_probs` and `advantages` [B, R].

Alignment: entry j of a response column belongs to position L - R + j of `sequences`. Since March 2026 the whole row is
padded on its left, so that responses end at L; before that, prompts are padded on the left and responses on the right.
`attention_mask` and `response_mask` say which, and both are read as they stand. Padding holds 0.0. -9999.0 is the
engine's floor for a logprob that is missing or not finite: it is INVALID. 0.0 where the loss mask is 0 stands for a
token that the policy did not sample (an observation). With a single assistant message SkyRL may append an end token
that was not sampled: its loss mask is 1 and its rollout logprob 0.0, which cannot be told from a sampled token of
probability 1.

`action_log_probs` are the trainer's before the update, absent where the loss does not need them; divided by the
temperature; `rollout_logprobs` are the engine's: raw ones, as vLLM gives them by default and SkyRL does not change
(logprobs_mode). Both are float32. The last `metadata["pad_size"]` rows are copies of the first that fill the batch up;
they have no loss mask and are no rows of the data. `rewards` and the prompts' uids are taken out before the batch is
saved.

Source: NovaSky-AI/SkyRL:skyrl/train/trainer.py, skyrl/train/dataset/preprocess.py,
skyrl/backends/skyrl_train/training_batch.py, skyrl/backends/skyrl_train/inference_servers/generate_wire.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from onepolicy.dumps.completion_columns import CompletionNames, CompletionRow, recorded, step_of
from onepolicy.dumps.contract import Format, RecordedRollout, Refusal
from onepolicy.dumps.fields import refusing
from onepolicy.dumps.file import DumpFile
from onepolicy.dumps.padded import PaddedBatch, matrix, needed
from onepolicy.dumps.stored import Opaque
from onepolicy.dumps.torch_archive import unpickled
from onepolicy.errors import DumpError

NAMES = CompletionNames(
    tokens="token_ids", loss_mask="loss_mask", rollout="rollout_logprobs", trainer="action_log_probs"
)
REWARDS = "rewards"
COLUMNS = (NAMES.loss_mask, NAMES.rollout, NAMES.trainer, NAMES.advantages, REWARDS)
READ = ("sequences", "attention_mask", "response_mask", *COLUMNS)


def _state(file: DumpFile) -> dict[str, Any] | None:
    """What `TrainingInputBatch` was saved with, wherever its pickle has it."""
    found = file.loaded() if file.kind == "pickle" else None
    parts = found.parts() if isinstance(found, Opaque) else ()
    return next((part for part in parts if isinstance(part, dict) and isinstance(part.get("batch_dict"), dict)), None)


def _recognises(file: DumpFile) -> bool:
    state = _state(file)
    return state is not None and "sequences" in state["batch_dict"]


def _rows(file: DumpFile) -> Iterator[RecordedRollout | Refusal]:
    state = _state(file)
    assert state is not None
    found = {name: _array(file, name, value) for name, value in state["batch_dict"].items() if name in READ}
    batch = _batch(file, found)
    named = re.search(r"global_step_(\d+)", file.name.rpartition("/")[2])
    step = int(named[1]) if named else None
    for number in range(len(batch.sequences) - _padding(file, state, batch)):
        row = refusing(f"{file.name}, row {number}", partial(_row, file, batch, number, step))
        yield row if isinstance(row, Refusal) else recorded(row)


def _row(file: DumpFile, batch: PaddedBatch, number: int, step: int | None) -> CompletionRow:
    fields, length = batch.row(number)
    rewards = fields.get(REWARDS)
    return CompletionRow(
        where=f"{file.name}, row {number}",
        rollout_id=f"{file.label}/{number}",
        fields=fields,
        names=NAMES,
        response_length=length,
        step=step,
        reward=None if rewards is None else rewards.sum(),
    )


def _array(file: DumpFile, name: str, value: Any) -> Any:
    """A tensor of the batch: its bytes with shape and dtype, or as torch saves it."""
    if not isinstance(value, dict):
        return value
    try:
        if str(value.get("format")) == "torch":
            return unpickled(value["data"])
        return np.frombuffer(value["data"], dtype=np.dtype(value["dtype"])).reshape(value["shape"])
    except (KeyError, TypeError, ValueError, DumpError) as error:
        raise DumpError(f"{file.name}: {name} is no tensor as SkyRL saves one: {error}") from None


def _batch(file: DumpFile, found: dict[str, Any]) -> PaddedBatch:
    sequences = needed(found, "sequences", rows=None, where=file.name)
    rows = len(sequences)
    columns = {name: matrix(found, name, rows=rows, where=file.name) for name in COLUMNS}
    return PaddedBatch(
        sequences=sequences,
        attention=needed(found, "attention_mask", rows=rows, where=file.name) != 0,
        response=needed(found, "response_mask", rows=rows, where=file.name) != 0,
        response_name="response_mask",
        loss_name=NAMES.loss_mask,
        columns={name: column for name, column in columns.items() if column is not None},
    )


def _padding(file: DumpFile, state: dict[str, Any], batch: PaddedBatch) -> int:
    """How many of the last rows only fill the batch up."""
    metadata = state.get("metadata")
    size = step_of(metadata.get("pad_size")) if isinstance(metadata, dict) else None
    if not size:
        return 0
    rows, loss = len(batch.sequences), batch.columns.get(NAMES.loss_mask)
    if not 0 < size < rows or (loss is not None and loss[rows - size :].any()):
        raise DumpError(
            f"{file.name}: metadata says that {size} of {rows} rows only fill the batch up, and loss_mask trains "
            "on them. Save the batch again."
        )
    return size


SKYRL = Format(
    name="skyrl",
    title="SkyRL's dumped_data/global_step_{N}_training_input.pkl (trainer.dump_data_batch)",
    recognises=_recognises,
    rows=_rows,
    sampled_from_reported=False,
    notes=(
        "Rollout logprobs are raw unless vLLM's logprobs_mode was set; the trainer's are divided by the temperature.",
        "Compared are the tokens with loss mask 1: the file does not say which others were sampled.",
        "An end token that SkyRL appended itself has the rollout logprob 0.0 and loss mask 1; it was not sampled.",
    ),
)
