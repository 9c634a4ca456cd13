"""One full token sequence, and the model calls inside it."""

from __future__ import annotations

from dataclasses import dataclass, field

from onepolicy.errors import AlignmentError
from onepolicy.records.tokens import BoolArray, IntArray, digest_of_ids


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rollout:
    """A prompt and its completion as token ids.

    `sampled` (the policy produced this token) and `loss_mask` (the trainer trains on it) are two things: the answer of
    a tool is neither, a sampled token of an over-long rollout may be sampled and not trained on.
    """

    rollout_id: str
    prompt_id: str
    """all samples of one prompt share it; it is the independent unit of every interval"""
    trajectory_id: str
    """rollouts of one conversation whose history was rewritten share it; else equal to `rollout_id`"""
    token_ids: IntArray
    """[T] prompt and completion"""
    sampled: BoolArray
    """[T]"""
    loss_mask: BoolArray
    """[T]"""
    text: str | None = None
    """the completion as the sampling side decodes it, special tokens spelled out; None if it is not to be kept"""
    reward: float | None = None
    group: str | None = None
    tags: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not len(self.token_ids) == len(self.sampled) == len(self.loss_mask):
            raise AlignmentError(
                f"rollout {self.rollout_id}: {len(self.token_ids)} token ids, {len(self.sampled)} entries in `sampled` "
                f"and {len(self.loss_mask)} in `loss_mask`. All three describe the same tokens."
            )

    @property
    def digest(self) -> str:
        """What a reading of this rollout must carry."""
        return digest_of_ids(self.token_ids)

    @property
    def compared(self) -> BoolArray:
        """[T] the tokens on which two engines are compared: the sampled ones, or the completion of a fixed sequence."""
        return self.sampled if self.sampled.any() else self.loss_mask


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One model call inside a rollout: tokens `start` to `end` (end not included)."""

    rollout_id: str
    start: int
    end: int
    turn: int = 0
    weight_version: str = ""
    finish_reason: str = ""
    """stop (an end token or a stop string), length (the limit), or what the engine said"""
    stop_reason: str = ""
    """the end token id or the stop string, where the engine says"""
    cached_tokens: int | None = None
    """prompt tokens that came from a prefix cache; None where the engine does not say"""
    protocol_hash: str = ""
