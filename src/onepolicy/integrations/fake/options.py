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
