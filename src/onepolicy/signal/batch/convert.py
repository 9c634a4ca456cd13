"""A batch -> its columns: values read on the host, their shapes and kinds checked."""

from __future__ import annotations

import math
from operator import index
from typing import Any, SupportsIndex

import numpy as np
import torch
from torch import Tensor

from onepolicy.errors import AlignmentError, UsageError
from onepolicy.records.tokens import BoolArray, Float64
from onepolicy.signal.batch.batch import SignalBatch, Values
from onepolicy.signal.batch.columns import PER_TOKEN, Columns, Integers
from onepolicy.signal.kinds import ids

Array = np.ndarray[Any, np.dtype[Any]]

_PER_ROW = ("starts", "lengths", "prompts", "rewards")
_ARRAYS = (*PER_TOKEN, *_PER_ROW, "advantages", "value_token_ids", "value_attention_mask")


def columns_of(batch: SignalBatch) -> Columns:
    """The batch, converted.

    Raises: AlignmentError if shapes differ, or a completion reaches past the last column; UsageError for a mask that
    holds something else than 0 and 1, values that are no numbers, and tensors that cannot be read on the host.
    """
    given = _given(batch)
    rows = _checked(given)
    starts = _integers("starts", given)
    return Columns(
        rows=rows,
        token_ids=_integers("token_ids", given),
        attention_mask=_mask("attention_mask", given),
        loss_mask=_mask("loss_mask", given),
        sampled=_mask("sampled", given),
        starts=np.zeros(rows, dtype=np.int64) if starts is None else starts,
        lengths=_integers("lengths", given),
        end_ids=np.asarray(ids(batch.end_ids), dtype=np.int64),
        prompts=_names("prompts", given),
        group_size=_size("group_size", batch.group_size),
        group_relative=batch.group_relative,
        rewards=_floats("rewards", given),
        reward_type=_type_name(batch.rewards),
        advantages=_floats("advantages", given),
        advantage_step=_step(batch.advantages),
        rollout_logprobs=_floats("rollout_logprobs", given),
        reference_logprobs=_floats("reference_logprobs", given),
        value_token_ids=_integers("value_token_ids", given),
        value_attention_mask=_mask("value_attention_mask", given),
    )


def _given(batch: object) -> dict[str, Array]:
    if not isinstance(batch, SignalBatch):
        raise UsageError(f"a batch is a SignalBatch, and this is a {type(batch).__name__}: SignalBatch(loss_mask=...).")
    return {name: _array(name, getattr(batch, name)) for name in _ARRAYS if getattr(batch, name) is not None}


def _array(name: str, values: Values) -> Array:
    try:
        if isinstance(values, Tensor):
            plain = values.detach().cpu().resolve_conj().resolve_neg()
            return (plain.to(torch.float32) if plain.dtype == torch.bfloat16 else plain).numpy()
        return np.asarray(values)
    except (TypeError, RuntimeError) as error:
        first_line = str(error).partition("\n")[0]
        raise UsageError(
            f"{name} cannot be read on the host ({first_line}). Give a dense tensor that holds its "
            "values (to_dense, full_tensor), in a type that numpy has (float)."
        ) from error
    except ValueError as error:
        raise AlignmentError(
            f"{name}: rows of unequal length. Pad them, and say with `lengths` where they end."
        ) from error


# -- shapes -----------------------------------------------------------------------------------------------------


def _checked(given: dict[str, Array]) -> int:
    """B. Raises: AlignmentError."""
    if not given:
        raise UsageError("a batch of nothing: give at least one field of SignalBatch.")
    for name, array in given.items():
        wanted = (1,) if name in _PER_ROW else (1, 2) if name == "advantages" else (2,)
        if array.ndim not in wanted:
            shape = {(1,): "[B]", (2,): "[B, T]", (1, 2): "[B] or [B, T]"}[wanted]
            raise AlignmentError(f"{name} have shape {list(array.shape)}; they are {shape}.")
    first = next(iter(given))
    for name, array in given.items():
        if len(array) != len(given[first]):
            raise AlignmentError(f"{name} have {len(array)} rows and {first} {len(given[first])}.")
    _check_widths([name for name in (*PER_TOKEN, "advantages") if name in given and given[name].ndim == 2], given)
    _check_widths([name for name in ("value_token_ids", "value_attention_mask") if name in given], given)
    return len(given[first])


def _check_widths(names: list[str], given: dict[str, Array]) -> None:
    for name in names[1:]:
        if given[name].shape != given[names[0]].shape:
            raise AlignmentError(
                f"{name} have shape {list(given[name].shape)} and {names[0]} {list(given[names[0]].shape)}. Logprobs "
                "that begin at the second token need the masks of these tokens, without the first column."
            )


# -- kinds of values --------------------------------------------------------------------------------------------


def _integers(name: str, given: dict[str, Array]) -> Integers | None:
    if name not in given:
        return None
    if given[name].dtype.kind not in "iu" and given[name].size:  # an empty list is of no kind
        raise UsageError(f"{name} are {given[name].dtype}; they are whole numbers.")
    return given[name].astype(np.int64)


def _mask(name: str, given: dict[str, Array]) -> BoolArray | None:
    if name not in given:
        return None
    found = given[name]
    if found.dtype.kind not in "biuf" or not ((found == 0) | (found == 1)).all():
        raise UsageError(f"{name} holds something else than 0 and 1 ({found.dtype}).")
    return found.astype(np.bool_)


def _floats(name: str, given: dict[str, Array]) -> Float64 | None:
    if name not in given:
        return None
    if given[name].dtype.kind not in "biuf":
        raise UsageError(f"{name} are {given[name].dtype}; they are numbers.")
    return given[name].astype(np.float64)


def _names(name: str, given: dict[str, Array]) -> tuple[str, ...] | None:
    """Raises: UsageError for a missing one, as all rows without a prompt would be completions of one."""
    if name not in given:
        return None
    found = given[name].tolist()
    for row, one in enumerate(found):
        if one is None or (isinstance(one, float) and math.isnan(one)):
            raise UsageError(f"{name}: row {row} has {one}. Give each row a number or a name of its prompt.")
    return tuple(map(str, found))


def _size(name: str, size: SupportsIndex | None) -> int | None:
    try:
        found = None if size is None else index(size)
    except TypeError:
        found = 0
    if found is not None and found < 1:
        raise UsageError(f"{name} is {size!r}; it is a whole number from 1 on.")
    return found


def _type_name(values: Values | None) -> str:
    if values is None:
        return ""
    return str(values.dtype).removeprefix("torch.") if isinstance(values, Tensor) else str(np.asarray(values).dtype)


def _step(values: Values | None) -> float:
    if isinstance(values, Tensor) and values.is_floating_point():
        return float(torch.finfo(values.dtype).eps)
    kind = None if values is None or isinstance(values, Tensor) else np.asarray(values).dtype
    return float(np.finfo(kind).eps) if kind is not None and kind.kind == "f" else 0.0
