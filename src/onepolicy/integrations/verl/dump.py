"""verl's `DataProto` files: `DataProto.save_to_disk`, and `{step}/gen_batch.dp` of skip.rollout.dump_dir.

A pickle of three parts. `batch`: `prompts` [B, P], `responses` [B, R], `input_ids` and `attention_mask` [B, P + R],
`response_mask`, `rollout_log_probs`, `old_log_probs`, `advantages`, `token_level_scores` or `rm_scores` [B, R].
`non_tensor_batch`: `uid`, `data_source`, `min_global_steps` and `max_global_steps`, one entry for each row.
`meta_info`: `global_steps`.

Alignment: prompts are padded on the left, responses on the right, as `attention_mask` says; nothing is read from a pad
id. Entry j of a [B, R] column belongs to token j of the response. `response_mask` is 1 for a token that the policy
sampled, 0 for a tool's answer and for padding; rejection sampling of rollout_correction sets further ones to 0.
Without it the response is what `attention_mask` says, as verl has it. Values at padding and at a tool's tokens are
0.0, or -1.0 in older versions; they are MASKED. There is no sentinel of verl's.

`rollout_log_probs` are the engine's as it samples (processed logprobs), float32; `old_log_probs` the trainer's before
the update, float32, divided by the temperature. A batch that was saved before `old_log_probs` were computed has one
side. In bypass mode (rollout_correction.bypass_mode) `old_log_probs` are a copy of `rollout_log_probs` and say
nothing. The step is `global_steps`, else that of a `meta.json` in the same folder, else the number that the folder is
called. The weight version is `min_global_steps` of the engine, with `max_global_steps` if it changed on the way.

Source: verl-project/verl:verl/protocol.py, verl/utils/skip/rollout_skip.py,
verl/experimental/agent_loop/agent_loop.py, verl/trainer/ppo/ray_trainer.py, verl/trainer/ppo/rollout_corr_helper.py
(0.9.1).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from onepolicy.dumps.completion_columns import CompletionNames, CompletionRow, name_of, recorded, step_of
from onepolicy.dumps.contract import Format, RecordedRollout, Refusal
from onepolicy.dumps.fields import FieldError, refusing
from onepolicy.dumps.file import DumpFile
from onepolicy.dumps.padded import PaddedBatch, matrix, needed
from onepolicy.dumps.stored import Opaque
from onepolicy.errors import DumpError
from onepolicy.integrations.verl.tensordict import tensors_of

NAMES = CompletionNames(
    tokens="token_ids", loss_mask="response_mask", rollout="rollout_log_probs", trainer="old_log_probs"
)
SCORES = ("token_level_scores", "rm_scores")
COLUMNS = (NAMES.loss_mask, NAMES.rollout, NAMES.trainer, NAMES.advantages, *SCORES)
OTHERS = ("uid", "data_source", "min_global_steps", "max_global_steps")


def _parts(file: DumpFile) -> tuple[Any, Mapping[str, Any], Mapping[str, Any]] | None:
    """Batch as it was saved, non_tensor_batch and meta_info of a DataProto."""
    found = file.loaded() if file.kind == "pickle" else None
    if not isinstance(found, Opaque) or found.cls != "DataProto":
        return None
    if isinstance(found.state, tuple) and len(found.state) == 3:
        batch, others, meta = found.state
        return batch, others if isinstance(others, dict) else {}, meta if isinstance(meta, dict) else {}
    raise DumpError(
        f"{file.name}: it is a DataProto of another layout than verl's of today. Save it again with a newer verl."
    )


def _recognises(file: DumpFile) -> bool:
    return _parts(file) is not None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Saved:
    """What a file holds, checked as far as it concerns all rows."""

    file: DumpFile
    batch: PaddedBatch
    input_ids: Any
    """[B, P + R] or None"""
    others: dict[str, Any]
    """[B] each, by its name in `OTHERS`; only those that the file has"""
    step: int | None

    def where(self, number: int) -> str:
        return f"{self.file.name}, row {number}"

    def row(self, number: int) -> CompletionRow:
        """Raises: FieldError."""
        if self.input_ids is not None:
            _check_ids(self.input_ids[number], self.batch, number)
        fields, length = self.batch.row(number)
        other = {name: name_of(name, column[number]) for name, column in self.others.items()}
        scores = next((fields[name] for name in SCORES if name in fields), None)
        return CompletionRow(
            where=self.where(number),
            rollout_id=f"{self.file.label}/{number}",
            fields=fields,
            names=NAMES,
            response_length=length,
            prompt_id=other.get("uid", ""),
            tags={"data_source": other["data_source"]} if other.get("data_source") else {},
            step=self.step,
            weight_versions=[other.get("min_global_steps"), other.get("max_global_steps")],
            reward=None if scores is None else scores.sum(),
        )


def _rows(file: DumpFile) -> Iterator[RecordedRollout | Refusal]:
    saved = _saved(file)
    for number in range(len(saved.batch.sequences)):
        row = refusing(saved.where(number), partial(saved.row, number))
        yield row if isinstance(row, Refusal) else recorded(row)


def _saved(file: DumpFile) -> _Saved:
    parts = _parts(file)
    assert parts is not None
    found = tensors_of(parts[0], where=file.name)
    prompts = needed(found, "prompts", rows=None, where=file.name)
    others = {name: _list(file, parts[1], name, len(prompts)) for name in OTHERS}
    return _Saved(
        file=file,
        batch=_batch(file, found, prompts),
        input_ids=matrix(found, "input_ids", rows=len(prompts), where=file.name),
        others={name: column for name, column in others.items() if column is not None},
        step=_step(file, parts[2]),
    )


def _batch(file: DumpFile, found: Mapping[str, Any], prompts: Any) -> PaddedBatch:
    rows = len(prompts)
    responses = needed(found, "responses", rows=rows, where=file.name)
    attention = needed(found, "attention_mask", rows=rows, where=file.name) != 0
    columns = {name: matrix(found, name, rows=rows, where=file.name) for name in COLUMNS}
    width = responses.shape[1]
    return PaddedBatch(
        sequences=np.concatenate([prompts, responses], axis=1),
        attention=attention,
        response=attention[:, attention.shape[1] - width :] if width else attention[:, :0],
        response_name="attention_mask",
        loss_name=NAMES.loss_mask,
        columns={name: column for name, column in columns.items() if column is not None},
    )


def _check_ids(whole: Any, batch: PaddedBatch, number: int) -> None:
    """Raises: FieldError if `input_ids` is not prompt and response in a row."""
    ids = batch.sequences[number]
    attention = batch.attention[number]
    if len(whole) == len(ids) == len(attention) and not np.array_equal(whole[attention], ids[attention]):
        differing = np.flatnonzero(attention & (whole != ids))
        raise FieldError(
            "input_ids",
            f"{len(differing)} tokens, the first at position {differing[0]}, differ from prompts and responses",
        )


def _list(file: DumpFile, others: Mapping[str, Any], name: str, rows: int) -> Any:
    column = others.get(name)
    if column is None:
        return None
    listed = isinstance(column, list) or (isinstance(column, np.ndarray) and column.ndim > 0)
    if not listed or len(column) != rows:
        found = len(column) if listed else "no"
        raise DumpError(f"{file.name}: non_tensor_batch: {name} has {found} entries for {rows} rows.")
    return column


def _step(file: DumpFile, meta: Mapping[str, Any]) -> int | None:
    said = step_of(meta.get("global_steps"))
    folder = file.location.rpartition("/")[0]
    if said is None and file.beside("meta.json"):
        beside = DumpFile(f"{folder}/meta.json" if folder else "meta.json").first()
        said = step_of(beside.get("global_steps")) if beside else None
    number = folder.rpartition("/")[2]
    if said is None and number.isascii() and number.isdigit():
        said = int(number)
    return said


VERL = Format(
    name="verl",
    title="verl's DataProto files (DataProto.save_to_disk; {step}/gen_batch.dp of skip.rollout.dump_dir)",
    recognises=_recognises,
    rows=_rows,
    notes=(
        "In verl's bypass mode old_log_probs are a copy of rollout_log_probs: two columns that agree in every bit may "
        "be one column.",
        "Where rejection sampling was on, the tokens that it rejected are not compared: response_mask leaves them out.",
    ),
)
