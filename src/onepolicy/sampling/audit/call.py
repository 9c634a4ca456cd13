"""A rollout -> the model calls in it, with what is known of their ends."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from onepolicy.records.rollout import Rollout, Span
from onepolicy.records.tokens import BoolArray, Float32, IntArray, digest_of_ids

_STOP = frozenset({"stop", "eos", "eos_token", "stop_sequence", "end_turn", "tool_calls", "function_call"})
_LENGTH = frozenset({"length", "max_tokens", "max_length", "limit"})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Call:
    """One model call: what it was given, and what it sampled."""

    rollout_id: str
    prompt_id: str
    trajectory_id: str = ""
    """calls of one conversation share it"""
    step: str = ""
    """of the training, where the run knows it: another step is another policy"""
    prompt: IntArray
    """[P] everything in front of it"""
    completion: IntArray
    """[C] at least one"""
    logprobs: Float32 | None = None
    """[C] nats, NaN where there is none; None if the run has no rollout reading"""
    trained: BoolArray
    """[C] the loss mask"""
    finish_reason: str = ""
    """as the engine said it; empty where it did not"""
    stop_reason: str = ""
    seed: str = ""
    """as the files that were read name it; empty where they do not"""
    protocol_hash: str = ""
    begins: bool = True
    """whether the prompt is the rollout's own, and not a conversation with earlier answers in it"""
    text: str | None = None
    """of the completion as the engine gave it, if the rollout is this one call and its text is kept"""
    logprob: float = field(init=False)
    """of the whole completion, in nats; NaN if a token has none"""
    prompt_key: tuple[str, str] = field(init=False)
    """what calls of one prompt under one policy share, whatever their prompt is called"""
    digest: str = field(init=False)
    """of the completion's ids"""

    def __post_init__(self) -> None:
        logprob = math.nan if self.logprobs is None else float(self.logprobs.sum(dtype=np.float64))
        object.__setattr__(self, "logprob", logprob)
        object.__setattr__(self, "prompt_key", (digest_of_ids(self.prompt), self.step))
        object.__setattr__(self, "digest", digest_of_ids(self.completion))

    @property
    def says_stop(self) -> bool:
        """Whether the engine said that the completion came to its end."""
        return self.finish_reason.lower() in _STOP

    @property
    def says_length(self) -> bool:
        """Whether the engine said that a limit cut it."""
        return self.finish_reason.lower() in _LENGTH

    @property
    def last(self) -> int:
        """The last id."""
        return int(self.completion[-1])

    @property
    def total(self) -> int:
        """Tokens of prompt and completion."""
        return len(self.prompt) + len(self.completion)


def calls_of(rollout: Rollout, spans: Sequence[Span], logprobs: Float32 | None) -> Iterator[Call]:
    """The calls of a rollout, in their order. A span with tokens of others in it (a tool's answer) is several.

    logprobs: [T] of the rollout side. The finish reason belongs to a span's last call; the one that the file of a
    framework gave (a tag), to the rollout's. A rollout without spans is one.
    """
    whole = Span(rollout_id=rollout.rollout_id, start=0, end=len(rollout.token_ids))
    known = sorted(spans, key=lambda span: span.start) or [whole]
    parts = [(span, start, end) for span in known for start, end in _stretches(rollout.sampled, span)]
    for number, (span, start, end) in enumerate(parts):
        is_last = number + 1 == len(parts)
        ends_span = is_last or parts[number + 1][0] is not span
        tagged = rollout.tags.get("finish_reason", "") if is_last else ""
        yield Call(
            rollout_id=rollout.rollout_id,
            prompt_id=rollout.prompt_id,
            trajectory_id=rollout.trajectory_id,
            step=rollout.tags.get("step", ""),
            prompt=rollout.token_ids[:start],
            completion=rollout.token_ids[start:end],
            logprobs=None if logprobs is None else logprobs[start:end],
            trained=rollout.loss_mask[start:end],
            finish_reason=(span.finish_reason if ends_span else "") or tagged,
            stop_reason=span.stop_reason if ends_span else "",
            seed=rollout.tags.get("seed", ""),
            protocol_hash=span.protocol_hash,
            begins=number == 0 and rollout.trajectory_id == rollout.rollout_id,
            text=rollout.text if len(parts) == 1 else None,
        )


def _stretches(sampled: BoolArray, span: Span) -> Iterator[tuple[int, int]]:
    """Where sampled tokens of a span begin and end, one after the other."""
    inside = np.concatenate([[False], sampled[span.start : span.end], [False]]).astype(np.int8)
    edges = np.flatnonzero(np.diff(inside)) + span.start
    yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
