"""The contract between the workflow and an engine.

To add one: a folder in `onepolicy/integrations/` with a class that has these methods, and one line in
`onepolicy/integrations/__init__.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from onepolicy.records.canary import Canary
from onepolicy.records.protocol import Meaning, SamplingProtocol
from onepolicy.records.reading import Condition, EngineInfo, ReadingRow, TopLists
from onepolicy.records.tokens import BoolArray, Float32, IntArray, StateArray

Message = Mapping[str, str]
"""{"role": "user", "content": "..."}"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScoreInput:
    """One sequence to score."""

    rollout_id: str
    token_ids: IntArray
    """[T]"""
    wanted: BoolArray
    """[T] the tokens whose logprob is asked for; the other entries come back MASKED"""
    report: TopLists | None = None
    """ids whose logprobs to report as well; only `positions` and `ids` are read"""
    keep_top: bool = True
    """whether this rollout belongs to the share for which top lists are kept"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What to return for each sequence beside its logprobs."""

    meaning: Meaning = Meaning()
    statistics: bool = False
    top: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SampleInput:
    """One prompt to complete."""

    rollout_id: str
    prompt_ids: IntArray
    """[P]"""
    seed: int
    keep_top: bool = True


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Completion:
    """What an engine sampled for one prompt. Entries are for the C completion tokens."""

    rollout_id: str
    token_ids: IntArray
    """[C] end token included"""
    logprobs: Float32
    """[C] NaN where there is none"""
    states: StateArray
    """[C] of TokenState"""
    text: str
    """as the engine decodes it, special tokens spelled out"""
    finish_reason: str
    stop_reason: str = ""
    cached_tokens: int | None = None
    weight_version: str = ""
    top1: IntArray | None = None
    """[C]"""
    statistics: dict[str, Float32] = field(default_factory=dict)
    """name -> [C]"""
    top: TopLists | None = None
    """`positions` count from the first completion token"""


@runtime_checkable
class Engine(Protocol):
    """Scores given token ids."""

    scores: bool
    """whether `score` works; False for an engine that can only be a rollout side"""
    batch_size: int
    """how many sequences the workflow hands over at a time; what is lost at most if the process is killed"""

    @property
    def info(self) -> EngineInfo:
        """What the engine says that it is."""

    def condition(self, *, path: str) -> Condition:
        """Under which circumstances it computes."""

    def score(self, batch: Sequence[ScoreInput], wanted: Wanted) -> list[ReadingRow]:
        """Teacher-forced logprobs: one row for each sequence, in order. Raises EngineError."""

    def tokenizer_file(self) -> bytes | None:
        """The content of a `tokenizer.json`, or None if the engine has none."""

    def decode(self, token_ids: IntArray) -> str | None:
        """Text of the ids, special tokens spelled out; None if the engine has no tokenizer."""

    def close(self) -> None:
        """Free what it holds."""


@runtime_checkable
class Sampler(Engine, Protocol):
    """An engine that also samples."""

    obeys: frozenset[str]
    """fields of a protocol that `sample` acts on, `ALWAYS` of engines/obeyed.py among them. The workflow refuses a
    protocol in which another one differs from its default"""

    def encode_chat(self, messages: Sequence[Message]) -> IntArray:
        """Ids of a conversation, rendered with the model's template and ready for the answer."""

    def encode(self, text: str, *, add_special_tokens: bool) -> IntArray:
        """Ids of a text."""

    def sampled_meaning(self, protocol: SamplingProtocol) -> Meaning:
        """What the logprobs that `sample` returns mean.

        Raises: UsageError if the engine cannot sample as the protocol says, such as in another order of processors.
        """

    def sample(self, batch: Sequence[SampleInput], protocol: SamplingProtocol, wanted: Wanted) -> list[Completion]:
        """One completion for each prompt, in order. Raises EngineError."""


@runtime_checkable
class Concurrent(Protocol):
    """An engine that answers each sequence by itself, such as a server: the workflow keeps many in flight."""

    concurrency: int
    """requests that it can usefully have at once"""

    def submit_score(self, item: ScoreInput, wanted: Wanted) -> Future[ReadingRow]:
        """What `score` gives for one sequence, later. The future raises EngineError."""

    def submit_sample(self, item: SampleInput, protocol: SamplingProtocol, wanted: Wanted) -> Future[Completion]:
        """What `sample` gives for one prompt, later."""


@runtime_checkable
class Replaceable(Protocol):
    """An engine whose model can become another one while it works, such as a server."""

    def canary(self, token_ids: IntArray) -> Canary:
        """What it says of some ids now. Raises EngineError."""
