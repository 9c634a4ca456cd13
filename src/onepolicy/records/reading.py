"""One engine's logprobs for a run's tokens under one condition."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from pydantic import Field

from onepolicy.errors import AlignmentError
from onepolicy.records.canary import Canary
from onepolicy.records.protocol import Meaning
from onepolicy.records.strict import Strict
from onepolicy.records.tokens import Float32, IntArray, StateArray, TokenState


class Condition(Strict):
    """Under which circumstances an engine computed its logprobs."""

    path: Literal["decode", "prefill"] = "prefill"
    """decode: one token after the other, as when sampling. prefill: all at once, as when training"""
    batch_size: int | None = None
    padding_side: Literal["left", "right"] | None = None


class ReadingRequest(Strict):
    """What to compute. Two equal requests need computing once; a run keeps the request beside the numbers."""

    engine: str
    """a spec string, see `onepolicy.engines.spec`; it never carries a key or a password"""
    path: Literal["decode", "prefill"] = "prefill"
    meaning: Meaning = Meaning()
    statistics: bool = False
    """also keep, for each token, what is needed to try causes offline; see `onepolicy.logprobs.statistics`"""
    top: int = Field(default=0, ge=0)
    """how many of the most likely tokens to keep at each position; 0 is none"""
    report_ids_of: str | None = None
    """report the logprobs of the top tokens that this other reading of the run keeps"""
    top_share: float = Field(default=1.0, ge=0.0, le=1.0)
    """share of prompts, chosen by the hash of their id, for which top tokens are kept"""
    shuffle: int | None = None
    """seed of the order in which rollouts were handed over; None: as they lie in the run, by length among near ones"""

    def place_of(self, rollout_id: str) -> bytes:
        """What rollouts are sorted by to be shuffled: it depends on the seed and the rollout alone."""
        return hashlib.sha256(f"{self.shuffle}:{rollout_id}".encode()).digest()

    def keeps_top(self, prompt_id: str) -> bool:
        """Whether this prompt belongs to the recorded random share."""
        if self.top_share >= 1.0:
            return True
        first = int.from_bytes(hashlib.sha256(prompt_id.encode()).digest()[:8], "big")
        return first < self.top_share * 2.0**64


class EngineInfo(Strict):
    """What an engine said that it is."""

    name: str
    """transformers, vllm, llamacpp ..."""
    version: str
    model: str
    dtype: str
    """of weights and activations, as the field writes it: float32, bfloat16, Q4_1"""
    device: str = "cpu"
    weights_hash: str = ""
    """empty if the engine cannot say"""
    tokenizer_hash: str = ""
    """SHA-256 of the tokenizer file as it lies in the run's `tokenizers/` folder; empty if there is none"""
    vocab_size: int | None = None
    max_length: int | None = None
    options: dict[str, str] = Field(default_factory=dict)


class ReadingInfo(Strict):
    """`reading.json`: everything about a reading but its numbers."""

    name: str
    request: ReadingRequest
    engine: EngineInfo
    condition: Condition
    meaning: Meaning
    environment: dict[str, str]
    canary: Canary | None = None
    """by which the model is known again, of an engine that could be given another one"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TopLists:
    """Logprobs of K chosen tokens at some positions of one rollout.

    The set does not depend on the sampled token: the extra entry that a server adds for it is dropped.
    """

    positions: IntArray
    """[N] positions in the full sequence"""
    ids: IntArray
    """[N, K]"""
    logprobs: Float32
    """[N, K], NaN where the engine gave none"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReadingRow:
    """One rollout's entries. Entry i belongs to token i; where there is no value it is NaN and the state says why."""

    rollout_id: str
    digest: str
    """of the ids that were scored"""
    logprobs: Float32
    """[T] nats"""
    states: StateArray
    """[T] of `TokenState`"""
    top1: IntArray | None = None
    """[T] the most likely token, -1 where unknown"""
    statistics: dict[str, Float32] = field(default_factory=dict)
    """name -> [T]"""
    top: TopLists | None = None

    def __post_init__(self) -> None:
        if len(self.logprobs) != len(self.states):
            raise AlignmentError(
                f"rollout {self.rollout_id}: {len(self.logprobs)} logprobs and {len(self.states)} states"
            )
        if self.top1 is not None and len(self.top1) != len(self.logprobs):
            raise AlignmentError(
                f"rollout {self.rollout_id}: {len(self.logprobs)} logprobs and {len(self.top1)} entries in `top1`"
            )
        value = self.states == TokenState.VALUE
        if np.isnan(self.logprobs[value]).any():
            raise AlignmentError(f"rollout {self.rollout_id}: a position has the state VALUE and no number")
