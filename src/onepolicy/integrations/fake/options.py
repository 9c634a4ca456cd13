"""The options of the fake engine."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from onepolicy.engines.options import EngineOptions


class FakeOptions(EngineOptions):
    """Options of `fake:NAME?...`; the name itself is only a label. The defaults plant no fault."""

    seed: int = Field(default=0, ge=0)
    """which weights: equal seeds are the same model"""
    noise: float = Field(default=0.0, ge=0.0, allow_inf_nan=False)
    """standard deviation of a Gaussian on each logit, fixed by the last three ids, `seed` and `dtype`"""
    temperature: float = Field(default=1.0, gt=0.0, allow_inf_nan=False)
    """a planted fault: what is reported belongs to logits / temperature, what is sampled does not"""
    offset: float = Field(default=0.0, allow_inf_nan=False)
    """a planted fault, in nats: added to every logprob; one that ends above zero comes back INVALID"""
    batch_noise: float = Field(default=0.0, ge=0.0, lt=0.1, allow_inf_nan=False)
    """when scoring: relative standard deviation of each logprob, fixed by the sequences of the batch and their order"""
    chat_bos: int = Field(default=0, ge=0)
    """how many <|bos|> stand in front of a chat; a planted fault if it is more than one"""
    delay: float = Field(default=0.0, ge=0.0, allow_inf_nan=False)
    """seconds to sleep before each batch"""
    batch_size: int = Field(default=16, ge=1)
    """sequences at a time"""
    max_length: int = Field(default=0, ge=0)
    """longest sequence in tokens; 0 is no limit"""
    dtype: str = "float64"
    """a label; engines with different labels draw different noise"""
    logprobs: Literal["raw", "processed"] = "raw"
    """what the logprobs of sampled tokens mean"""

    def variations(self) -> dict[str, dict[str, object]]:
        """Another batch size; nothing is ever padded."""
        return {"batch": {"batch_size": 1 if self.batch_size > 1 else 8}}
