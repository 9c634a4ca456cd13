"""What a spec of a reward model may say."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from onepolicy.engines.options import EngineOptions


class RewardOptions(EngineOptions):
    """Options of a reward model in Transformers. Whatever is left out is as the model's own files say."""

    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """of weights and activations: what rewards are computed in where the model is used"""
    device: str = "cpu"
    """as torch writes it: cpu, cuda, cuda:1"""
    batch_size: int = Field(default=8, ge=1)
    """texts at a time where it does not matter"""
    label: int | None = Field(default=None, ge=0)
    """which of several outputs is the reward"""
    max_length: int | None = Field(default=None, ge=1)
    """tokens; longer texts are cut"""
    padding_side: Literal["left", "right"] | None = None
    """of a batch, as the code does it that uses the model"""
    truncation_side: Literal["left", "right"] | None = None
    """which end of a text that is too long is cut off"""
    adapter: str | None = None
    """folder of a PEFT adapter"""
    attn: Literal["eager", "sdpa"] = "sdpa"
    """implementation of the attention"""
    trust_remote_code: bool = False
    """run Python code that comes with the model; only for models whose code you have read"""
