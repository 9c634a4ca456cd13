"""prime-rl's token export: `token_exports/step_{n}/rank_{r}.jsonl`, one line for each sequence that a rank trained on.

* Full index: entry i belongs to token i. `trainer_logprobs` were moved one to the right before they were written; their
  first entry is that of no token (log of 1 / vocabulary, or what another sequence of the pack ended with).
* `trainer_logprobs` are of the weights being trained, of the forward pass that the loss was computed from, its logits
  divided by the sampling temperature: mismatch and staleness are in one number. `inference_logprobs` are those of
  sampling (vLLM with processed_logprobs).
* `loss_mask` is true on tokens that are trained on. With the streams `rl_weights` and `ref_kl_weights` only those where
  one of them is not 0 were sampled by the policy; the others are another model's, and have no logprobs of sampling. A
  stream of nulls is none: 1 and 0.
* `inference_logprobs` is 0.0 where nothing was sampled: MASKED here. At a sampled token 0.0 is a value.
* null is a number that was not finite: INVALID. No NaN and no Infinity is written.
* Padding at the end is not written, nor a sequence without a trained token.
* A step whose folder has no `STABLE` is still being written, or its trainer ended in the midst of it: it is not read.
* `log_importance_ratio` and `mismatch_kl` are computed from the two columns; a line in which they are not is refused.
* float32.

Source: PrimeIntellect-ai/prime-rl:src/prime_rl/trainer/rl/token_export.py, src/prime_rl/trainer/rl/loss.py
(`shift_tensor_right`, `compute_importance_ratio_and_mismatch_kl`), src/prime_rl/trainer/rl/train.py, schema 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from onepolicy.dumps.block import prompt_digest
from onepolicy.dumps.contract import Format, RecordedRollout, Refusal
from onepolicy.dumps.fields import (
    FieldError,
    column,
    mask,
    numbers,
    refusing,
    same_length,
    shared,
    shown,
    text,
    token_ids,
    whole,
)
from onepolicy.records.rollout import Rollout
from onepolicy.records.tokens import BoolArray, Float64

if TYPE_CHECKING:
    from onepolicy.dumps.file import DumpFile

Line = Mapping[str, Any]
SCHEMA_VERSION = 1
STABLE = "STABLE"
_SIGNATURE = {"schema_version", "token_ids", "loss_mask", "inference_logprobs", "trainer_logprobs"}
_ROUNDING = 1e-5
"""relative to the numbers that were subtracted; float32 gives 1.2e-7"""
_OTHER_PRECISION = 2.0**-7
"""of the difference, if it was kept in bfloat16, which gives 2^-8"""


def recognises(file: DumpFile) -> bool:
    """By the keys of the first line."""
    return set(file.first() or ()) >= _SIGNATURE


def rows(file: DumpFile) -> Iterator[RecordedRollout | Refusal]:
    """The sequences of one rank in one step. Raises: DumpError if a line is no JSON object."""
    if not file.beside(STABLE):
        if file.is_begun:
            return
        yield Refusal(
            where=file.name,
            field=STABLE,
            why="is not in the folder, so this step is still being written, or the trainer ended before it was. Import "
            f"it when it is there; if you know that the file is whole, create an empty {STABLE} beside it",
        )
        return
    for row, where, line in file.numbered_objects():
        yield refusing(where, partial(_rollout, line, f"{file.label}/{row}", where=where))


PRIME_RL = Format(
    name="prime-rl",
    title="prime-rl: token_exports/step_*/rank_*.jsonl (trainer.enable_token_export)",
    recognises=recognises,
    rows=rows,
    trainer="current",
    notes=("trainer_logprobs are of the weights being trained: staleness is in the numbers",),
)


def _rollout(line: Line, rollout_id: str, *, where: str) -> RecordedRollout:
    if line.get("schema_version") != SCHEMA_VERSION:
        raise FieldError("schema_version", f"is {shown(line.get('schema_version'))}; this reads {SCHEMA_VERSION}")
    ids = token_ids("token_ids", line.get("token_ids"))
    loss_mask = mask("loss_mask", line.get("loss_mask"))
    same_length("loss_mask", len(loss_mask), len(ids))
    sampled = _sampled(line, loss_mask)
    sides = {name: _numbers(line, name, len(ids)) for name in ("inference_logprobs", "trainer_logprobs")}
    _check_derived(line, sides["trainer_logprobs"], sides["inference_logprobs"])
    environment = text("env_name", line.get("env_name"))
    return RecordedRollout(
        where=where,
        rollout=Rollout(
            rollout_id=rollout_id,
            prompt_id=prompt_digest(ids, sampled),
            trajectory_id=rollout_id,
            token_ids=ids,
            sampled=sampled,
            loss_mask=loss_mask,
            tags={"env_name": environment} if environment else {},
        ),
        rollout_logprobs=column(sides["inference_logprobs"], sampled),
        trainer_logprobs=column(sides["trainer_logprobs"], sampled, from_second=True),
        step=whole("step", line.get("step")),
        advantage=None if "advantages" not in line else shared(_numbers(line, "advantages", len(ids)), sampled),
    )


def _sampled(line: Line, loss_mask: BoolArray) -> BoolArray:
    """[T] the trained tokens that the policy sampled. Raises: FieldError if none was."""
    own, reference = _stream(line, "rl_weights", loss_mask), _stream(line, "ref_kl_weights", loss_mask)
    if own is None and reference is None:
        return loss_mask
    chosen = np.ones_like(loss_mask) if own is None else own
    sampled: BoolArray = loss_mask & (chosen if reference is None else chosen | reference)
    if not sampled.any():
        raise FieldError(
            "rl_weights",
            "and ref_kl_weights are 0 at every trained token: the tokens are another model's, and there are no "
            "logprobs of sampling to compare with",
        )
    return sampled


def _stream(line: Line, name: str, loss_mask: BoolArray) -> BoolArray | None:
    """[T] where the weights are not 0; None for a stream that is none."""
    if line.get(name) is None:
        return None
    values = _numbers(line, name, len(loss_mask))
    return None if np.isnan(values).all() else values != 0.0


def _numbers(line: Line, name: str, length: int) -> Float64:
    """[T] with NaN for null, which stands for a number that was not finite."""
    values, _ = numbers(name, line.get(name))
    same_length(name, len(values), length)
    return values


def _check_derived(line: Line, trainer: Float64, inference: Float64) -> None:
    """Raises: FieldError if what the trainer computed from the two columns is not what they give."""
    with np.errstate(over="ignore", invalid="ignore"):
        ratio = trainer - inference
        spread = _ROUNDING * (1.0 + np.abs(trainer) + np.abs(inference)) + _OTHER_PRECISION * np.abs(ratio)
        _agree(line, "log_importance_ratio", ratio, spread)
        kl = np.expm1(ratio) - ratio
        _agree(line, "mismatch_kl", kl, spread * np.abs(np.expm1(ratio)) + _ROUNDING * (1.0 + np.exp(ratio)))


def _agree(line: Line, name: str, expected: Float64, spread: Float64) -> None:
    if line.get(name) is None:
        return
    told = _numbers(line, name, len(expected))
    off = np.isfinite(told) & np.isfinite(expected) & (np.abs(told - expected) > spread)
    if off.any():
        at = int(np.argmax(off))
        raise FieldError(
            name,
            f"entry {at} is {told[at]:.6g}, and trainer_logprobs and inference_logprobs give {expected[at]:.6g} there "
            f"({int(off.sum())} of {len(off)} entries differ). The columns are not of one forward pass, or shifted",
        )
