"""How often the tokens that begin and end a sequence stand in the ids, and where."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from onepolicy.records.rollout import Rollout
from onepolicy.tokens.boundaries import Boundaries
from onepolicy.tokens.sides import Reader

KEPT = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundaryBreak:
    """A rollout with a token that begins or ends a sequence where none belongs, or without one."""

    rollout_id: str
    position: int
    what: str
    """one of the fields of `SpecialTokens` that count"""
    token: str


@dataclass(slots=True, kw_only=True)
class SpecialTokens:
    """Counted over whole sequences, prompts too, and over rollouts without a text as well."""

    boundaries: Boundaries = field(default_factory=Boundaries)
    spelled: dict[int, str] = field(default_factory=dict)
    """id -> its text, for the ids in `boundaries`"""
    raw_text: bool = False
    """whether the prompts are plain texts, in front of which the tokenizer puts what it adds"""
    rollouts: int = 0
    """that were looked at"""
    doubled: int = 0
    """rollouts that begin with more than one BOS"""
    missing: int = 0
    """rollouts of a plain text without the BOS that the tokenizer adds"""
    at_boundary: int = 0
    """rollouts with a BOS where the completion begins, or just before"""
    inside: int = 0
    """rollouts with a BOS at any other place behind the front"""
    ended_twice: int = 0
    """rollouts that end with the same end token twice"""
    breaks: list[BoundaryBreak] = field(default_factory=list)

    @classmethod
    def of(cls, reader: Reader, *, raw_text: bool) -> SpecialTokens:
        """Nothing counted yet, for the ids of this tokenizer."""
        ids = reader.boundaries.bos | reader.boundaries.eos
        spelled = {i: reader.pieces.text_of(i) for i in ids}
        return cls(boundaries=reader.boundaries, spelled=spelled, raw_text=raw_text)

    def seen(self, rollout: Rollout) -> Rollout:
        """The rollout, after it was counted."""
        self.rollouts += 1
        if len(rollout.token_ids):
            self._count(rollout)
        return rollout

    def _count(self, rollout: Rollout) -> None:
        ids = rollout.token_ids
        bos = np.isin(ids, list(self.boundaries.bos)) if self.boundaries.bos else np.zeros(len(ids), dtype=np.bool_)
        front = int(np.argmin(bos)) if not bos.all() else len(ids)
        if front > 1:
            self._found("doubled", rollout, 1)
        elif self.raw_text and self.boundaries.adds_bos and front == 0:
            self._found("missing", rollout, 0)
        self._look_inside(rollout, np.flatnonzero(bos[front:]) + front)
        if len(ids) > 1 and ids[-1] == ids[-2] and int(ids[-1]) in self.boundaries.eos:
            self._found("ended_twice", rollout, len(ids) - 1)

    def _look_inside(self, rollout: Rollout, places: np.ndarray) -> None:
        if not len(places):
            return
        start = int(np.argmax(rollout.compared)) if rollout.compared.any() else -1
        at_start = places[(places == start) | (places == start - 1)]
        if len(at_start):
            self._found("at_boundary", rollout, int(at_start[0]))
        else:
            self._found("inside", rollout, int(places[0]))

    def _found(self, what: str, rollout: Rollout, position: int) -> None:
        setattr(self, what, getattr(self, what) + 1)
        if sum(b.what == what for b in self.breaks) < KEPT:
            token = self.spelled.get(int(rollout.token_ids[position]), "")
            self.breaks.append(BoundaryBreak(rollout_id=rollout.rollout_id, position=position, what=what, token=token))
