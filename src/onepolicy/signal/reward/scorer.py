"""What gives a score: one that is only asked, or one whose ids, padding and weights are in our hands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from onepolicy.records.tokens import Float64, IntArray
from onepolicy.signal.reward.pairs import Conversation

Side = Literal["left", "right"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorerInfo:
    """What is known of a scorer without asking for a score."""

    name: str
    """as a person named it"""
    dtype: str = "unknown"
    """of weights and activations"""
    label: int | None = None
    """which of several outputs is the reward; None if nobody said"""
    max_length: int | None = None
    """tokens of the longest text, where it is known"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenIds:
    """Ids of one conversation, and whose they are."""

    ids: IntArray
    tokenizer: str
    """hash of the tokenizer that made them"""

    def without_last(self, count: int) -> TokenIds:
        """The same without its last ids."""
        return TokenIds(ids=self.ids[: len(self.ids) - count], tokenizer=self.tokenizer)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerFacts:
    """How a reward model's own tokenizer and its model's configuration fit together."""

    has_template: bool
    rows: int
    """of the model's embedding"""
    highest_id: int
    """that the tokenizer can give"""
    pad_id: int | None
    """what the tokenizer pads with"""
    model_pad_id: int | None
    """what the model's configuration takes for padding"""
    end_ids: tuple[int, ...]
    """that end a turn or a text"""
    bos_id: int | None
    padding_side: Side
    """of its batches"""


class Scorer(Protocol):
    """Gives scores for conversations. Any failure is an EngineError."""

    @property
    def info(self) -> ScorerInfo:
        """What is known of it."""

    def score(self, conversations: Sequence[Conversation]) -> Float64:
        """All at once, as it likes to batch them. Shape: -> [B, L] with L outputs for each, nearly always 1."""

    def close(self) -> None:
        """Free what it holds."""


@runtime_checkable
class TakesIds(Protocol):
    """Can be given ids instead of text."""

    def score_ids(self, texts: Sequence[TokenIds]) -> Float64:
        """The same for ids. Shape: -> [B, L]. Raises: EngineError for ids of another tokenizer, where that is known."""


@runtime_checkable
class OpenScorer(Protocol):
    """A model in this process: it can be padded, cut, loaded again."""

    @property
    def facts(self) -> TokenizerFacts:
        """Of its own tokenizer."""

    @property
    def missing(self) -> tuple[str, ...]:
        """Weights that the files lack, which are random numbers."""

    @property
    def info(self) -> ScorerInfo:
        """What is known of it."""

    def score(self, conversations: Sequence[Conversation]) -> Float64:
        """In its own batches. Shape: -> [B, L]."""

    def encode(self, conversations: Sequence[Conversation], *, limit: int | None = None) -> list[TokenIds]:
        """Ids, cut as its tokenizer cuts if there are more than `limit`."""

    def text(self, ids: IntArray) -> str:
        """What ids stand for."""

    def score_ids(self, texts: Sequence[TokenIds]) -> Float64:
        """In its own batches. Shape: -> [B, L]."""

    def score_padded(self, one: TokenIds, *, side: Side, pads: int) -> Float64:
        """One text alone with padding on a side. Shape: -> [L]."""

    def score_together(self, texts: Sequence[TokenIds], *, side: Side) -> Float64:
        """One batch, whatever its size, padded on a side. Shape: -> [B, L]. Raises: EngineError if it cannot."""

    def again(self, *, seed: int = 0, dtype: str | None = None) -> OpenScorer:
        """The same files loaded once more. seed: of whatever is drawn at random. dtype: another precision."""

    def close(self) -> None:
        """Free what it holds."""
