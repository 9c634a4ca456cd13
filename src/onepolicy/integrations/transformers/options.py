"""What a `transformers:` spec may say."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from onepolicy.engines.legs import LegChange
from onepolicy.integrations.transformers.circumstances import Circumstances, legs_of


class TransformersOptions(Circumstances):
    """Options of the engine `transformers`."""

    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """of weights and activations"""
    device: str = "cpu"
    """as torch writes it: cpu, cuda, cuda:1"""
    batch_size: int = Field(default=8, ge=1)
    """how many sequences share a forward pass; with 1 nothing is ever padded"""
    padding_side: Literal["left", "right"] | None = None
    """of a padded batch when scoring; right if not given. Sampling always pads on the left"""
    adapter: str | None = None
    """folder of a PEFT adapter"""
    merged: Literal["float32", "bfloat16", "float16"] | None = None
    """add the adapter's weights to those of the model and round the sums to this, instead of keeping them beside"""
    config: str | None = None
    """constants of the model that are not those of its folder: `rope_theta=10000;sliding_window=+1`. `+1` and `-1`
    count from what is there, `none` takes it away; rope_factor is what positions are divided by,
    and vocab_size leaves the rows of the head from there on out"""
    replaced: str | None = None
    """`lm_head=FOLDER`: the weights whose names hold that word are those of another folder (an absolute path, as a
    config file's folder is not put before it)"""
    attn: Literal["eager", "sdpa"] = "sdpa"
    """implementation of the attention"""
    logprobs: Literal["raw", "processed"] = "raw"
    """what sampled logprobs mean: of the model's logits, or after temperature and truncation"""
    trust_remote_code: bool = False
    """run Python code that comes with the model; only for models whose code you have read"""

    def variations(self) -> dict[str, dict[str, object]]:
        """Another batch size, and the other side of padding; with a batch of 1 nothing would be padded."""
        return {
            "batch": {"batch_size": 1 if self.batch_size > 1 else 8},
            "padding": {
                "batch_size": self.batch_size if self.batch_size > 1 else 8,
                "padding_side": "right" if self.padding_side == "left" else "left",
            },
        }

    def legs(self, target: str) -> dict[str, LegChange | str]:
        """Each way of calling the model, and each precision."""
        del target
        return legs_of(self, dtype=self.dtype, batch_size=self.batch_size)
