"""What is shown and stored of tokens that do not come back, or that a later prompt has otherwise."""

from __future__ import annotations

from typing import Literal

from onepolicy.records.strict import Strict
from onepolicy.records.verdict import Status

Kind = Literal["retokenisation drift", "template rewrite"]
Way = Literal["ids", "text", "reading"]
"""ids -> text -> ids; text -> ids -> text; the sampling side's text of the ids against the scoring side's"""


class ShownPiece(Strict):
    """One token of a spelling."""

    id: int | None
    """None for a stretch of a text"""
    text: str
    """cut if it is long; bytes that form no character as \\x.."""
    bytes: str
    """in hexadecimal, cut if they are many"""


class ShownBreak(Strict):
    """One rollout that does not come back."""

    rollout: str
    way: Way
    counts: Literal["tokens", "characters"]
    """what `position` counts: tokens of the full sequence, or characters of the text with an added token as one"""
    position: int
    """of the first difference"""
    cause: str
    seen: str
    """the evidence for the cause"""
    advice: str
    first: tuple[ShownPiece, ...]
    """what was there: sampled, or the text before its way"""
    second: tuple[ShownPiece, ...]
    """what came back"""
    shifted: float
    """share of the tokens that stand elsewhere afterwards"""


class RoundTripReport(Strict):
    """What `onepolicy tokens roundtrip` found."""

    status: Status
    sentence: str
    targets: tuple[str, ...]
    sampling: str
    """the tokenizer that decodes what was sampled"""
    scoring: str
    checked: int
    empty: int
    """rollouts without a token and a text; there is nothing that could come back"""
    tokens: int
    broken: int
    """of the checked, those with a break of any kind"""
    shifted: float
    """mean share of tokens that stand elsewhere, over the rollouts whose ids do not come back"""
    causes: dict[Way, dict[str, int]]
    """way -> cause -> rollouts"""
    breaks: tuple[ShownBreak, ...]
    """the first few of each way"""

    @property
    def exit_status(self) -> int:
        """What the command ends with."""
        return self.status.exit_status


class ShownHistoryBreak(Strict):
    """A turn of a trajectory that a later prompt does not hold as it was sampled. Texts are cut if they are long."""

    trajectory: str
    call: int
    """whose prompt differs, from 0"""
    turn: int | None
    """whose sampled ids it no longer holds, from 0; None in the first prompt"""
    after_turn: bool
    """whether the break lies behind the turn's completion, in what the environment or the template wrote"""
    kind: Kind
    """drift: the same text in other ids. rewrite: other text"""
    position: int
    """of the first differing id in the sequence as it was sampled"""
    cause: str
    seen: str
    """the evidence for the cause"""
    advice: str
    removed: str
    """text that the later prompt lacks; empty where no text is shown"""
    added: str
    missing_ids: tuple[int, ...]
    """ids that only the later prompt has there, where nothing was removed"""
    first: tuple[ShownPiece, ...]
    """as it was sampled"""
    second: tuple[ShownPiece, ...]
    """as it was sent"""

    def __str__(self) -> str:
        return f"call {self.call} breaks {self.where}: {self.kind} ({self.cause}), {self._said()}"

    @property
    def where(self) -> str:
        """Turn and position in words."""
        turn = "the first prompt" if self.turn is None else f"turn {self.turn}"
        return f"{'after' if self.after_turn else 'in'} {turn} at position {self.position}"

    def _said(self) -> str:
        if self.kind == "retokenisation drift" or not (self.removed or self.added):
            first, second = ("|".join(repr(p.text)[1:-1] or f"<{p.id}>" for p in s) for s in (self.first, self.second))
            return f"sampled {first or 'nothing'}, sent {second or 'nothing'}"
        told = (("removed", self.removed), ("added", self.added))
        return " and ".join(f"{word} {text[:60]!r}" for word, text in told if text)


class HistoryReport(Strict):
    """What `onepolicy tokens history` found."""

    status: Status
    sentence: str
    targets: tuple[str, ...]
    tokenizer: str
    trajectories: int
    """of at least two calls, which alone have a history"""
    calls: int
    """in them"""
    alone: int
    """trajectories of fewer calls"""
    unchecked: int
    """trajectories whose calls have no known order, or no tokenizer"""
    why_unchecked: str
    """of the first of them"""
    broken: int
    """trajectories with a break"""
    causes: dict[Kind, dict[str, int]]
    """kind -> cause -> breaks"""
    breaks: tuple[ShownHistoryBreak, ...]
    """the first 1,000; `causes` counts all"""

    @property
    def exit_status(self) -> int:
        """What the command ends with."""
        return self.status.exit_status
