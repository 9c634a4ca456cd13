"""The sampling configuration of a run, and what a logprob means under it."""

from __future__ import annotations

import hashlib
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


def _no_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("true and false are no numbers")
    return value


Number = Annotated[float, BeforeValidator(_no_bool)]
"""a float that YAML's true and false do not stand for"""


class Strict(BaseModel):
    """A value that is written as JSON or YAML; unknown keys are errors.

    JSON has no infinity: it is written as the string "Infinity", which comes back as a number.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="strings")


class SamplingProtocol(Strict):
    """How completions are sampled. The defaults change nothing: the model's own distribution."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    temperature: float = Field(default=1.0, ge=0.0, allow_inf_nan=False)
    """0 is greedy"""
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    """1 is off"""
    top_k: int = Field(default=0, ge=0)
    """0 is off"""
    min_p: float = Field(default=0.0, ge=0.0, le=1.0)
    """0 is off"""
    max_new_tokens: int = Field(default=64, ge=1)
    """longest completion"""
    samples_per_prompt: int = Field(default=1, ge=1)
    """completions of each prompt"""
    seed: int = 0
    """each rollout gets a seed of its own, derived from this one and its id"""

    @property
    def hash(self) -> str:
        """The first 16 hex digits of the SHA-256 of the canonical JSON."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()[:16]

    @property
    def is_greedy(self) -> bool:
        """Whether nothing is drawn at random."""
        return self.temperature == 0.0

    @property
    def is_plain(self) -> bool:
        """Whether tokens are drawn from the model's own distribution."""
        return self.temperature == 1.0 and self.top_p == 1.0 and self.top_k == 0 and self.min_p == 0.0

    def seed_for(self, rollout_id: str) -> int:
        """A 31-bit seed that depends on the run's seed and the rollout alone, so a resumed run repeats it."""
        return int.from_bytes(hashlib.sha256(f"{self.seed}:{rollout_id}".encode()).digest()[:4], "big") >> 1


class Meaning(Strict):
    """Which distribution the logprobs of a reading belong to: how the model's logits were processed before log-softmax.

    The defaults change nothing; logprobs under them are raw.
    """

    temperature: float = Field(default=1.0, gt=0.0, allow_inf_nan=False)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    top_k: int = Field(default=0, ge=0)
    min_p: float = Field(default=0.0, ge=0.0, le=1.0)

    @property
    def is_raw(self) -> bool:
        """Whether nothing is processed: the log-softmax of the model's own logits."""
        return self == Meaning()

    @property
    def truncates(self) -> bool:
        """Whether some tokens have probability zero under it."""
        return self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0

    @classmethod
    def processed_by(cls, protocol: SamplingProtocol) -> Meaning:
        """The meaning of logprobs after `protocol` was applied; raw if it changes nothing."""
        if protocol.is_plain or protocol.is_greedy:
            return cls()
        return cls(
            temperature=protocol.temperature,
            top_p=protocol.top_p,
            top_k=protocol.top_k,
            min_p=protocol.min_p,
        )

    def __str__(self) -> str:
        if self.is_raw:
            return "raw"
        parts = [f"temperature {self.temperature:g}"]
        parts += [f"top_p {self.top_p:g}"] if self.top_p < 1.0 else []
        parts += [f"top_k {self.top_k}"] if self.top_k else []
        parts += [f"min_p {self.min_p:g}"] if self.min_p else []
        return f"processed ({', '.join(parts)})"

    def is_sampled_from(self, protocol: SamplingProtocol) -> bool:
        """Whether tokens sampled under `protocol` are draws from the distribution these logprobs belong to.

        Only then do k1, k2 and k3 estimate a KL divergence.
        """
        return not protocol.is_greedy and self == Meaning.processed_by(protocol)
