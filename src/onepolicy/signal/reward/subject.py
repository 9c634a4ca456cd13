"""What the checks look at: a scorer, pairs, and the score of every answer alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from onepolicy.errors import EngineError, UsageError
from onepolicy.records.tokens import Float64
from onepolicy.signal.reward.grid import coarse_grid
from onepolicy.signal.reward.pairs import Conversation, Pair, answers_of
from onepolicy.signal.reward.scorer import OpenScorer, Scorer, ScorerInfo

EXACT, ROUNDED = 0.01, 0.1
"""how far a score may move, as a share of the spread: in float32, and where 16 bits or an unknown precision computes.
Advantages are divided by about the spread, so this is the change of an advantage"""
SAME = 1e-6
"""relative: two float32 scores this close are one"""
LARGEST = float(np.finfo(np.float32).max)
"""a score: what lies beyond is infinite for a trainer, which holds rewards in float32"""


class NotFiniteError(EngineError):
    """A scorer gave NaN, an infinite score or one above `LARGEST`."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Subject:
    """Everything that a check may use."""

    scorer: Scorer
    pairs: tuple[Pair, ...]
    raw: Float64
    """[2 P, L] all outputs for each answer, each scored alone; chosen and rejected take turns"""
    served: Scorer | None = None
    """the same reward model as a server has it"""

    @property
    def answers(self) -> list[Conversation]:
        """[2 P] in the order of the scores."""
        return answers_of(self.pairs)

    @property
    def scores(self) -> Float64:
        """[2 P] the reward of each answer."""
        return self.raw[:, self.column]

    @property
    def column(self) -> int:
        """Which output is the reward."""
        return self.scorer.info.label or 0

    @property
    def open(self) -> OpenScorer | None:
        """The scorer, if its padding and weights are in our hands."""
        return self.scorer if isinstance(self.scorer, OpenScorer) else None

    @property
    def spread(self) -> float:
        """Standard deviation of two answers to one prompt; what advantages are made of."""
        return spread_of(self.scores)

    @property
    def limit(self) -> float:
        """How far a score may move, as a share of the spread."""
        return EXACT if self.scorer.info.dtype == "float32" else ROUNDED

    @property
    def is_constant(self) -> bool:
        """Whether every answer to every prompt has one score, so that the pairs say nothing of the scorer."""
        return bool((self.scores == self.scores[0]).all())

    @property
    def is_coarse(self) -> bool:
        """Whether scores are so few or so rounded that two answers may have one by chance."""
        first = self.scores[::2]
        return len(np.unique(first)) < len(first) or bool(coarse_grid(self.scores))

    def rewards(self, conversations: Sequence[Conversation]) -> Float64:
        """[B] scored together, as the scorer batches. Raises: NotFiniteError."""
        return self.read(self.scorer.score(conversations)) if conversations else np.zeros(0)

    def read(self, raw: Float64) -> Float64:
        """The reward among outputs. Shape: [B, L] -> [B]. Raises: NotFiniteError."""
        return read(raw, self.scorer.info)

    def shares(self, scores: Float64, before: Float64) -> Float64:
        """[B] how far scores moved, in spreads; NaN without a spread. Shape: [B], [B]."""
        return np.abs(scores - before) / self.spread if self.spread > 0 else np.full(len(scores), np.nan)

    def equal(self, a: Float64, b: Float64) -> np.ndarray:
        """Which scores are one. Shape: [B], [B] -> [B] bool."""
        return np.isclose(a, b, rtol=SAME, atol=SAME * float(np.abs(self.scores).mean()))


def spread_of(scores: Float64) -> float:
    """Standard deviation within a pair, over all pairs. Shape: [2 P], chosen and rejected take turns."""
    return float(np.sqrt(np.mean((scores[::2] - scores[1::2]) ** 2) / 2))


def subject_of(scorer: Scorer, pairs: Sequence[Pair], *, served: Scorer | None = None) -> Subject:
    """Score every answer alone. Raises: EngineError; UsageError for an output that there is not."""
    raw = alone(scorer, answers_of(pairs))
    output(raw, scorer.info)
    return Subject(scorer=scorer, pairs=tuple(pairs), raw=raw, served=served)


def alone(scorer: Scorer | OpenScorer, conversations: Sequence[Conversation]) -> Float64:
    """One call for each. Shape: -> [B, L]. Raises: EngineError, also where L changes."""
    rows = [scorer.score([one]) for one in conversations]
    if len(widths := {row.shape[1] for row in rows}) != 1:
        raise EngineError(f"{scorer.info.name}: gives {sorted(widths)} outputs for one text. Give always as many.")
    return np.concatenate(rows)


def output(raw: Float64, info: ScorerInfo) -> Float64:
    """The output that is the reward. Shape: [B, L] -> [B]. Raises: UsageError if there is none."""
    label, outputs = info.label or 0, raw.shape[1]
    if label >= outputs:
        raise UsageError(f"{info.name}: has no output {label}; it has {outputs}, counted from 0.")
    return raw[:, label]


def read(raw: Float64, info: ScorerInfo) -> Float64:
    """The same, if all are numbers. Raises: NotFiniteError; UsageError likewise."""
    scores = output(raw, info)
    if wild := int((~is_finite(scores)).sum()):
        raise NotFiniteError(
            f"{info.name}: {wild} of {len(scores)} scores that this check asked for are NaN, infinite or above "
            "float32, and one of them spoils a batch. Find out where the scorer makes them."
        )
    return scores


def is_finite(scores: Float64) -> np.ndarray:
    """Which scores a trainer can hold. Shape: [N] -> [N] bool."""
    return np.abs(scores) <= LARGEST
