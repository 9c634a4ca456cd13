"""NeMo-RL's `train_data_step{N}.jsonl` in its log folder: one line for each sample of a training step.

* A line is a batch of one: `token_ids` is `[[...]]`, `rewards` is `[0.5]`. A sample's lists are padded to the longest
  one of the step; the first `input_lengths` entries count.
* Full index: entry i belongs to token i. `prev_logprobs` begins with a 0.0 that is no logprob.
* `token_loss_mask` is 1 on the tokens of assistant messages that were generated: these are sampled. A message in the
  history of the prompt has 0. `sample_loss_mask` 0 takes the sample out of the loss and not out of the comparison.
* `generation_logprobs` is 0.0 where nothing was generated: MASKED here. At a generated token 0.0 is a value.
* `prev_logprobs` are recomputed by the trainer's weights before the update. With `force_on_policy_ratio` they are not
  computed: every entry is 0.0, prompt included, and the trainer's side is not there.
* `rewards` is of the batch before dynamic sampling filtered it, in which case `filtered_rewards` is there, and is the
  sample's. A line that was written for a filtered sample has empty lists and is refused.
* float32, as Python prints it; NaN may stand as a literal, and is INVALID.
* `val_data_step{N}.jsonl`, and the file of a distillation, hold text and no logprobs: each line is refused.

Source: NVIDIA-NeMo/RL:nemo_rl/algorithms/grpo.py (`log_data`, `add_grpo_token_loss_masks_and_generation_logprobs`),
nemo_rl/algorithms/ppo.py, nemo_rl/utils/logger.py (`log_batched_dict_as_jsonl`), nemo_rl/models/policy/lm_policy.py
(`get_logprobs`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from onepolicy.dumps.block import prompt_digest
from onepolicy.dumps.contract import Column, Format, RecordedRollout, Refusal
from onepolicy.dumps.fields import (
    FieldError,
    column,
    mask,
    number,
    numbers,
    refusing,
    same_length,
    shared,
    token_ids,
    whole,
)
from onepolicy.records.rollout import Rollout
from onepolicy.records.tokens import BoolArray

if TYPE_CHECKING:
    from onepolicy.dumps.file import DumpFile

Line = Mapping[str, Any]
_NUMBERS = {"generation_logprobs", "prev_logprobs", "input_lengths"}
_TEXT = {"content", "idx"}
_TEXT_ONLY = _TEXT | {"rewards", "input_lengths", "agent_ref"}
_STEP = re.compile(r"(?:train|val)_data_step(\d+)")


def recognises(file: DumpFile) -> bool:
    """By the keys of the first line: the logprobs under NeMo-RL's names, or the text of a validation."""
    found = set(file.first() or ())
    return found >= _NUMBERS or _TEXT <= found <= _TEXT_ONLY


def rows(file: DumpFile) -> Iterator[RecordedRollout | Refusal]:
    """The samples of a step. Raises: DumpError if a line is no JSON object."""
    told = _STEP.search(file.name)
    step = int(told[1]) if told else None
    for row, where, line in file.numbered_objects():
        yield refusing(where, partial(_rollout, line, f"{file.label}/{row}", where=where, step=step))


NEMO_RL = Format(
    name="nemo-rl",
    title="NeMo-RL: train_data_step*.jsonl in the log folder",
    recognises=recognises,
    rows=rows,
    trainer="recomputed",
    notes=(
        "prev_logprobs are of the trainer's weights before the update; asynchronous training samples with older ones",
        "the logprobs of generation are after temperature and truncation with vLLM's processed_logprobs, the default",
    ),
)


def _rollout(line: Line, rollout_id: str, *, where: str, step: int | None) -> RecordedRollout:
    ids, length = _ids(line)
    padded = len(_sample(line, "token_ids"))
    sampled = _mask(line, padded, length)
    weight = number("sample_loss_mask", _scalar(line, "sample_loss_mask"))
    if weight is None:
        raise FieldError("sample_loss_mask", "is no number")
    loss_mask = sampled if weight else np.zeros(length, dtype=np.bool_)
    return RecordedRollout(
        where=where,
        rollout=Rollout(
            rollout_id=rollout_id,
            prompt_id=prompt_digest(ids, sampled),
            trajectory_id=rollout_id,
            token_ids=ids,
            sampled=sampled,
            loss_mask=loss_mask,
            reward=_reward(line),
            tags=_tags(line),
        ),
        rollout_logprobs=_column(line, "generation_logprobs", padded, sampled),
        trainer_logprobs=_column(line, "prev_logprobs", padded, sampled, recomputed=True),
        step=step,
        advantage=_advantage(line, padded, sampled),
    )


def _ids(line: Line) -> tuple[Any, int]:
    if "token_ids" not in line:
        raise FieldError(
            "token_ids",
            "is not there. Validation and distillation files hold text, and older versions of NeMo-RL write no ids; "
            "record training steps with a version that does",
        )
    padded = _sample(line, "token_ids")
    length = whole("input_lengths", _scalar(line, "input_lengths"))
    if length is None or length > len(padded):
        raise FieldError("input_lengths", f"is {length}, and token_ids has {len(padded)} entries with its padding")
    return token_ids("token_ids", padded[:length]), length


def _mask(line: Line, padded: int, length: int) -> BoolArray:
    given = mask("token_loss_mask", _sample(line, "token_loss_mask"))
    same_length("token_loss_mask", len(given), padded, of="padded tokens")
    if given[length:].any():
        raise FieldError(
            "token_loss_mask", f"is 1 at entry {length + int(np.argmax(given[length:]))}, and input_lengths is {length}"
        )
    return given[:length]


def _column(line: Line, name: str, padded: int, sampled: BoolArray, *, recomputed: bool = False) -> Column | None:
    if name not in line:
        return None
    values, nulls = numbers(name, _sample(line, name))
    same_length(name, len(values), padded, of="padded tokens")
    own = values[: len(sampled)]
    if recomputed and len(own) > 1 and not own.any():
        return None
    return column(own, sampled, nulls=None if nulls is None else nulls[: len(sampled)], from_second=recomputed)


def _advantage(line: Line, padded: int, sampled: BoolArray) -> float | None:
    if "advantages" not in line:
        return None
    values, _ = numbers("advantages", _sample(line, "advantages"))
    if len(values) == 1 and padded != 1:
        return float(values[0]) if np.isfinite(values[0]) else None
    same_length("advantages", len(values), padded, of="padded tokens")
    return shared(values[: len(sampled)], sampled)


def _reward(line: Line) -> float | None:
    name = "filtered_rewards" if "filtered_rewards" in line else "rewards"
    return number(name, _scalar(line, name)) if name in line else None


def _tags(line: Line) -> dict[str, str]:
    match line.get("agent_ref"):
        case [{"name": str(name)}] | {"name": str(name)}:
            return {"agent": name}
    return {}


def _sample(line: Line, name: str) -> list[Any]:
    """The list of the one sample of a line."""
    given = line.get(name)
    if not isinstance(given, list):
        raise FieldError(name, "is not there" if given is None else f"is {given!r:.40}, where a list belongs")
    if not given:
        raise FieldError(name, "is empty: dynamic sampling filtered this sample out, or the line was not written whole")
    if not isinstance(given[0], list):
        return given
    if len(given) != 1:
        raise FieldError(name, f"holds {len(given)} samples; NeMo-RL writes one to a line")
    return given[0]


def _scalar(line: Line, name: str) -> Any:
    """The number of the one sample of a line."""
    given = line.get(name)
    if isinstance(given, list):
        if len(given) != 1:
            raise FieldError(name, f"holds {len(given)} numbers; NeMo-RL writes one to a line")
        return given[0]
    if given is None:
        raise FieldError(name, "is not there")
    return given
