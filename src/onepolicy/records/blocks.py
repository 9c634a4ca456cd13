"""Rollouts and readings as flat arrays: what is measured. Apart from their tables, so that it loads in no time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from onepolicy.records.tokens import BoolArray, Float32, IntArray, StateArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RolloutBlock:
    """The rollouts of one row group as flat arrays; rollout r owns entries offsets[r] to offsets[r + 1]."""

    rollout_ids: list[str]
    prompt_ids: list[str]
    tags: list[str]
    """as JSON"""
    offsets: npt.NDArray[np.int64]
    """[R + 1]"""
    token_ids: IntArray
    """[N]"""
    sampled: BoolArray
    """[N]"""
    loss_mask: BoolArray
    """[N]"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReadingBlock:
    """Rows of a reading as flat arrays; row r owns entries offsets[r] to offsets[r + 1]."""

    rollout_ids: list[str]
    digests: list[str]
    offsets: npt.NDArray[np.int64]
    """[R + 1]"""
    logprobs: Float32
    """[N]"""
    states: StateArray
    """[N]"""
    top1: IntArray | None
    """[N]"""
    entropy: Float32 | None = None
    """[N] of the distribution that the logprobs belong to, NaN where unknown; None if the engine gave none"""
    varentropy: Float32 | None = None
    """[N]"""
    checked: bool = False
    """whether the states were made from these very numbers, so that VALUE stands beside logprobs only"""
