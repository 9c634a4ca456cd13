"""A batch as arrays of one kind on the host. Checks read these."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from onepolicy.errors import AlignmentError
from onepolicy.records.tokens import BoolArray, Float64

Integers = npt.NDArray[np.int64]

PER_TOKEN = ("token_ids", "attention_mask", "loss_mask", "sampled", "rollout_logprobs", "reference_logprobs")


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

    @property
    def trained(self) -> BoolArray | None:
        """[B, T] what of it is in the loss, or the one of the two that there is. A tool's answer is not in the loss."""
        if self.completion is None or self.loss_mask is None:
            return self.loss_mask if self.completion is None else self.completion
        return self.completion & self.loss_mask

    def members(self) -> dict[str, Integers]:
        """Prompt -> its rows, in the order in which prompts come. Empty without prompts."""
        found: dict[str, list[int]] = {}
        for row, prompt in enumerate(self.prompts or ()):
            found.setdefault(prompt, []).append(row)
        return {prompt: np.array(rows, dtype=np.int64) for prompt, rows in found.items()}


def _extent(columns: Columns) -> BoolArray | None:
    given = [array for name in PER_TOKEN if (array := getattr(columns, name)) is not None]
    if not given:
        return None
    width, lengths = given[0].shape[1], columns.lengths
    _check_ends(columns.starts, np.zeros_like(columns.starts) if lengths is None else lengths, width)
    places = np.arange(width)
    inside = places >= columns.starts[:, None]
    if lengths is not None:
        return inside & (places < (columns.starts + lengths)[:, None])
    return None if columns.attention_mask is None else inside & columns.attention_mask


def _check_ends(starts: Integers, lengths: Integers, width: int) -> None:
    wrong = np.flatnonzero((starts < 0) | (lengths < 0) | (starts + lengths > width))
    if len(wrong):
        row = int(wrong[0])
        raise AlignmentError(
            f"row {row}: a completion of {lengths[row]} tokens from column {starts[row]} on, in {width} columns. "
            "`lengths` count tokens of the completion; `starts` say where it begins."
        )
