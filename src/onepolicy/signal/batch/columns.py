"""A batch -> arrays of one kind on the host, their shapes checked. Checks read these."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from onepolicy.errors import AlignmentError, UsageError
from onepolicy.records.tokens import BoolArray, Float64
from onepolicy.signal.batch.batch import SignalBatch, Values

Integers = npt.NDArray[np.int64]
Array = np.ndarray[Any, np.dtype[Any]]

_PER_TOKEN = ("token_ids", "attention_mask", "loss_mask", "sampled", "rollout_logprobs", "reference_logprobs")
_PER_ROW = ("starts", "lengths", "prompts", "rewards")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Columns:
    """A batch as checks read it; None for what the trainer did not give."""

    rows: int
    token_ids: Integers | None
    """[B, T]"""
    attention_mask: BoolArray | None
    """[B, T]"""
    loss_mask: BoolArray | None
    """[B, T]"""
    sampled: BoolArray | None
    """[B, T]"""
    starts: Integers
    """[B]"""
    lengths: Integers | None
    """[B]"""
    end_ids: Integers
    """[E]"""
    prompts: tuple[str, ...] | None
    """[B]"""
    group_size: int | None
    group_relative: bool
    rewards: Float64 | None
    """[B]"""
    reward_type: str
    """as it came: "float32", "bfloat16", ..."""
    advantages: Float64 | None
    """[B] or [B, T]"""
    advantage_step: float
    """relative distance of two neighbouring values of the type in which advantages came"""
    rollout_logprobs: Float64 | None
    """[B, T]"""
    reference_logprobs: Float64 | None
    """[B, T]"""
    value_token_ids: Integers | None
    """[B, V]"""
    value_attention_mask: BoolArray | None
    """[B, V]"""
    extent: BoolArray | None = field(init=False)
    """[B, T] from the first token of a completion to its last: by lengths, or else by the attention mask; None if there
    is neither"""

    def __post_init__(self) -> None:
        object.__setattr__(self, "extent", _extent(self))

    @property
    def completion(self) -> BoolArray | None:
        """[B, T] what of it the policy sampled."""
        return self.extent if self.extent is None or self.sampled is None else self.extent & self.sampled

    def members(self) -> dict[str, Integers]:
        """Prompt -> its rows, in the order in which prompts come. Empty without prompts."""
        found: dict[str, list[int]] = {}
        for row, prompt in enumerate(self.prompts or ()):
            found.setdefault(prompt, []).append(row)
        return {prompt: np.array(rows, dtype=np.int64) for prompt, rows in found.items()}


def columns_of(batch: SignalBatch) -> Columns:
    """The batch, converted.

    Raises: AlignmentError if shapes differ, or a completion reaches past the last column; UsageError for a mask that
    holds something else than 0 and 1, or values that are no numbers.
    """
    given = {name: _array(name, getattr(batch, name)) for name in _ARRAYS if getattr(batch, name) is not None}
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
        end_ids=np.asarray(list(batch.end_ids), dtype=np.int64),
        prompts=tuple(map(str, given["prompts"].tolist())) if "prompts" in given else None,
        group_size=batch.group_size,
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


_ARRAYS = (*_PER_TOKEN, *_PER_ROW, "advantages", "value_token_ids", "value_attention_mask")


def _array(name: str, values: Values) -> Array:
    if isinstance(values, Tensor):
        plain = values.detach().cpu()
        return (plain.to(torch.float32) if plain.dtype == torch.bfloat16 else plain).numpy()
    try:
        return np.asarray(values)
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
    _check_widths([name for name in (*_PER_TOKEN, "advantages") if name in given and given[name].ndim == 2], given)
    _check_widths([name for name in ("value_token_ids", "value_attention_mask") if name in given], given)
    return len(given[first])


def _check_widths(names: list[str], given: dict[str, Array]) -> None:
    for name in names[1:]:
        if given[name].shape != given[names[0]].shape:
            raise AlignmentError(
                f"{name} have shape {list(given[name].shape)} and {names[0]} {list(given[names[0]].shape)}. Logprobs "
                "that begin at the second token need the masks of these tokens, without the first column."
            )


def _extent(columns: Columns) -> BoolArray | None:
    shaped = next((a for a in (columns.loss_mask, columns.token_ids, columns.attention_mask) if a is not None), None)
    if shaped is None or (columns.lengths is None and columns.attention_mask is None):
        return None
    places = np.arange(shaped.shape[1])
    inside = places >= columns.starts[:, None]
    if columns.lengths is None:
        assert columns.attention_mask is not None
        inside = inside & columns.attention_mask
    else:
        _check_ends(columns.starts, columns.lengths, shaped.shape[1])
        inside = inside & (places < (columns.starts + columns.lengths)[:, None])
    return inside


def _check_ends(starts: Integers, lengths: Integers, width: int) -> None:
    wrong = np.flatnonzero((starts < 0) | (lengths < 0) | (starts + lengths > width))
    if len(wrong):
        row = int(wrong[0])
        raise AlignmentError(
            f"row {row}: a completion of {lengths[row]} tokens from column {starts[row]} on, in {width} columns. "
            "`lengths` count tokens of the completion; `starts` say where it begins."
        )


# -- kinds of values --------------------------------------------------------------------------------------------


def _integers(name: str, given: dict[str, Array]) -> Integers | None:
    if name not in given:
        return None
    if given[name].dtype.kind not in "iu":
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


def _type_name(values: Values | None) -> str:
    if values is None:
        return ""
    return str(values.dtype).removeprefix("torch.") if isinstance(values, Tensor) else str(np.asarray(values).dtype)


def _step(values: Values | None) -> float:
    if isinstance(values, Tensor) and values.is_floating_point():
        return float(torch.finfo(values.dtype).eps)
    kind = None if values is None or isinstance(values, Tensor) else np.asarray(values).dtype
    return float(np.finfo(kind).eps) if kind is not None and kind.kind == "f" else 0.0
