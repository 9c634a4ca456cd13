"""Rows whose columns cover the response alone, put where they belong in the whole sequence.

Trainers keep a logprob for each token of the response: entry i of a column belongs to token `prompt + i`. A row is
taken as it stands or refused; nothing is shifted, cut or filled to make it fit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from onepolicy.dumps.contract import Column, RecordedRollout, Refusal
from onepolicy.dumps.fields import FieldError, column, misfit, refusing, shared, text
from onepolicy.dumps.stored import StoredTensor
from onepolicy.records.rollout import Rollout
from onepolicy.records.tokens import BoolArray, Float64, IntArray, TokenState, digest_of_ids

_LARGEST_ID = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionNames:
    """What a format calls its columns; messages say these names."""

    tokens: str
    loss_mask: str
    rollout: str
    trainer: str
    response_length: str = "response_length"
    total_length: str = "total_length"
    advantages: str = "advantages"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CompletionRow:
    """One rollout as a file has it, by the names that the file gives: lists, arrays, stored tensors or None."""

    where: str
    """file and row, as a message names them"""
    rollout_id: str
    fields: dict[str, Any]
    names: CompletionNames
    response_length: Any
    """how many of the last tokens are the response"""
    total_length: Any = None
    """how many tokens the file says there are; None if it does not say"""
    prompt_id: str = ""
    """empty: the digest of the prompt's ids"""
    group: str | None = None
    tags: dict[str, str] = field(default_factory=dict)
    step: Any = None
    weight_versions: Any = None
    """of the policy that sampled: one, or one for each call of the engine"""
    reward: Any = None
    trained: bool = True
    """False of a rollout that was sampled and kept out of training"""


def recorded(row: CompletionRow) -> RecordedRollout | Refusal:
    """The rollout with its columns over the full sequence, or the field that contradicts the others, with numbers.

    A token is sampled and trained on where the loss mask is not 0; all others are MASKED. A row without a loss mask is
    trained on over the whole response.
    """
    return refusing(row.where, lambda: _recorded(row))


def _recorded(row: CompletionRow) -> RecordedRollout:
    names, fields = row.names, row.fields
    ids = token_ids(names.tokens, fields.get(names.tokens))
    length = _response_length(row, len(ids))
    loss = np.ones(length, dtype=np.bool_)
    if fields.get(names.loss_mask) is not None:
        loss = _of_length(names.loss_mask, mask(names.loss_mask, fields[names.loss_mask]), length)
    compared = np.concatenate([np.zeros(len(ids) - length, dtype=np.bool_), loss])

    def side(name: str) -> Column | None:
        if fields.get(name) is None:
            return None
        values = np.full(len(ids), np.nan)
        values[len(ids) - length :] = _of_length(name, numbers(name, fields[name]), length)
        return column(values, compared, null=TokenState.INVALID)

    return RecordedRollout(
        where=row.where,
        rollout=Rollout(
            rollout_id=row.rollout_id,
            prompt_id=row.prompt_id or digest_of_ids(ids[: len(ids) - length]),
            trajectory_id=row.rollout_id,
            token_ids=ids,
            sampled=compared,
            loss_mask=compared if row.trained else np.zeros_like(compared),
            reward=number(row.reward),
            group=row.group,
            tags=row.tags,
        ),
        rollout_logprobs=side(names.rollout),
        trainer_logprobs=side(names.trainer),
        step=step_of(row.step),
        weight_version=_versions(row.weight_versions),
        advantage=_advantage(names.advantages, fields.get(names.advantages), loss),
    )


def entries(value: object) -> npt.NDArray[Any]:
    """A list, array or stored tensor as an array, None in a list as NaN; of no numeric dtype if it holds others."""
    try:
        array = np.asarray(value.array if isinstance(value, StoredTensor) else value)
        if array.dtype.kind == "O" and array.ndim == 1:
            array = np.asarray([np.nan if entry is None else entry for entry in array.tolist()])
    except (ValueError, TypeError, OverflowError):  # lists of several lengths, or what is no number at all
        return np.empty(0, dtype=object)
    return array


def numbers(field: str, value: object) -> Float64:
    """Shape: [N] float64. Raises: FieldError if it is no list of numbers."""
    array = entries(value)
    if array.dtype.kind not in "biuf" or array.ndim != 1:
        raise FieldError(field, f"{_described(value)} where a list with one number for each token belongs")
    return array.astype(np.float64)


def mask(field: str, value: object) -> BoolArray:
    """Shape: [N]. Raises: FieldError if it is no list of numbers, or one is NaN."""
    array = numbers(field, value)
    if np.isnan(array).any():
        raise FieldError(field, f"{int(np.isnan(array).sum())} entries are no numbers, where 0 or 1 belongs")
    nonzero: BoolArray = array != 0
    return nonzero


def token_ids(field: str, value: object) -> IntArray:
    """Shape: [T] int32. Raises: FieldError if it is no list of token ids."""
    array = entries(value)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise FieldError(field, f"{_described(value)} where a list of token ids belongs")
    if array.size and (array.min() < 0 or array.max() > _LARGEST_ID):
        raise FieldError(field, f"holds {int(array.min())} to {int(array.max())}; token ids are 0 to {_LARGEST_ID}")
    return array.astype(np.int32)


def whole(field: str, value: object) -> int:
    """A count. Raises: FieldError if it is none."""
    array = entries(value)
    if array.size != 1 or array.dtype.kind not in "iu" or array.item() < 0:
        raise FieldError(field, f"is {_described(value)}, where a count belongs")
    return int(array.item())


def number(value: object) -> float | None:
    """One number, or None if there is none, or several (a reward that is a dict)."""
    if isinstance(value, (dict, str, bytes)) or value is None:
        return None
    array = entries(value)
    return float(array.item()) if array.size == 1 and array.dtype.kind in "biuf" else None


def step_of(value: object) -> int | None:
    """The number of a training step, or None if the value is none."""
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or not 0 <= value < 2**63:
        return None
    return int(value)


def name_of(field: str, value: object) -> str:
    """A name or a number as text, empty for None. Raises: FieldError if it is something else."""
    return text(field, value.item() if isinstance(value, np.generic) else value)


def _versions(value: object) -> str:
    """The weight versions of a rollout's model calls as one name: "7", or "7,8" if they changed on the way."""
    several = (
        list(value) if isinstance(value, (list, tuple)) or (isinstance(value, np.ndarray) and value.ndim) else [value]
    )
    return ",".join(dict.fromkeys(name for name in (name_of("weight_versions", entry) for entry in several) if name))


def _of_length(field: str, values: npt.NDArray[Any], length: int) -> npt.NDArray[Any]:
    if len(values) != length:
        raise FieldError(field, misfit(len(values), length, of="response tokens"))
    return values


def _response_length(row: CompletionRow, tokens: int) -> int:
    length = whole(row.names.response_length, row.response_length)
    if length > tokens:
        raise FieldError(row.names.response_length, f"is {length}, and there are {tokens} tokens with the prompt")
    if row.total_length is not None:
        total = whole(row.names.total_length, row.total_length)
        if total != tokens:
            raise FieldError(row.names.tokens, misfit(tokens, total, of=f"tokens in {row.names.total_length}"))
    return length


def _advantage(field: str, value: object, loss: BoolArray) -> float | None:
    """The one that all trained tokens share; None if there is none, or they differ (GAE, a KL penalty per token)."""
    if value is None:
        return None
    return shared(_of_length(field, numbers(field, value), len(loss)), loss)


def _described(value: object) -> str:
    shape = np.shape(value.array) if isinstance(value, StoredTensor) else getattr(value, "shape", None)
    if shape is not None:
        return f"an array of shape {list(shape)}"
    if isinstance(value, (list, tuple)):
        return f"a list of {len(value)} that are not all numbers, or not in one row"
    return "nothing" if value is None else f"{type(value).__name__} {str(value)[:40]!r}"
