"""What a trainer computes its loss from, as it has it: tensors of any device, arrays or lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

Values = Tensor | npt.NDArray[np.generic] | Sequence[object]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SignalBatch:
    """B completions in T columns. Give what there is: a check whose input is absent says so and decides nothing.

    The columns are those of the completions alone, or of prompt and completion; then give `starts`.
    """

    token_ids: Values | None = None
    """[B, T]"""
    attention_mask: Values | None = None
    """[B, T] 1 where there is no padding"""
    loss_mask: Values | None = None
    """[B, T] 1 for what the loss is computed over"""
    sampled: Values | None = None
    """[B, T] 1 for what the policy sampled; where absent, all of a completion. A tool's answer is none of it"""
    starts: Values | None = None
    """[B] column of each completion's first token; 0 where absent"""
    lengths: Values | None = None
    """[B] tokens of each completion, end token included, as counted by the engine that sampled; where absent, what the
    attention mask marks, which leaves the end out if it was made by comparing ids with that of padding"""
    end_ids: Sequence[int] = ()
    """ids that end a completion"""
    prompts: Values | None = None
    """[B] numbers or names: the prompt that each completion answers"""
    group_size: int | None = None
    """completions of each prompt in the whole batch, if this is a part of it: fewer rows are then no whole group"""
    group_relative: bool = True
    """whether advantages are a reward minus the mean of its prompt (GRPO, Dr. GRPO, RLOO); not so of GAE"""
    rewards: Values | None = None
    """[B], in the type in which advantages are computed from them"""
    advantages: Values | None = None
    """[B], or [B, T]"""
    rollout_logprobs: Values | None = None
    """[B, T] nats, of the distribution that the tokens were drawn from"""
    reference_logprobs: Values | None = None
    """[B, T] nats, of the frozen policy of the KL penalty"""
    value_token_ids: Values | None = None
    """[B, V] what the value model is given"""
    value_attention_mask: Values | None = None
    """[B, V]"""
