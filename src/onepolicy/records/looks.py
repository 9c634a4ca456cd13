"""`judgements/looks.json`: which data of a growing run were judged, in order. What spends the level of its interval."""

from __future__ import annotations

from pydantic import Field

from onepolicy.records.strict import Strict


class Seen(Strict):
    """Data that were judged once."""

    rollout: str
    """name of the rollout side's reading"""
    trainer: str
    """what scored: the engine's spec and what its logprobs mean, whatever the reading's name"""
    rollouts: int = Field(ge=0)
    digest: str
    """of the ids of the rollouts, whatever their order"""


class Looks(Strict):
    """All that was judged, oldest first; the same data judged again stand here once."""

    seen: tuple[Seen, ...] = ()

    def number_of(self, data: Seen) -> int:
        """Which look at its pair of engines these data are, or would be; the first is 1."""
        same = [s for s in self.seen if (s.rollout, s.trainer) == (data.rollout, data.trainer)]
        return same.index(data) + 1 if data in same else len(same) + 1

    def with_look(self, data: Seen) -> Looks:
        """The same and these data, if they are new."""
        return self if data in self.seen else Looks(seen=(*self.seen, data))
