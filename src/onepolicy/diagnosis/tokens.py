"""The tokens of a run on which causes are tried."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from onepolicy.records.tokens import Float32, Float64, IntArray

Index = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tokens:
    """M sampled tokens with a logprob on both sides, in R rollouts, which lie one after the other."""

    rollout_ids: Sequence[str]
    """[R]"""
    prompt_ids: Sequence[str]
    """[R] the prompt group of each rollout: the independent unit"""
    sequences: Sequence[IntArray]
    """[R] all ids of each rollout, prompt included"""
    rollout: Index
    """[M] which rollout a token belongs to, ascending"""
    position: Index
    """[M] of the token in its sequence"""
    p: Float64
    """[M] rollout logprobs"""
    q: Float64
    """[M] trainer logprobs"""
    rollout_statistics: Mapping[str, Float32] = field(default_factory=dict)
    """name -> [M], as in `onepolicy.logprobs.statistics`; of the rollout side's raw distribution"""
    trainer_statistics: Mapping[str, Float32] = field(default_factory=dict)
    """the same of the trainer side's"""
    rollout_top1: IntArray | None = None
    """[M] the most likely token, -1 where unknown"""
    trainer_top1: IntArray | None = None
    """[M]"""
    left_out: tuple[str, ...] = ()
    """statistics that are recorded and not used, and why"""

    def __len__(self) -> int:
        return len(self.p)

    @property
    def d(self) -> Float64:
        """[M] trainer - rollout, nats."""
        return self.q - self.p

    @property
    def token_ids(self) -> IntArray:
        """[M]"""
        parts = [self.sequences[row][self.position[part]] for row, part in self.parts()]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int32)

    @property
    def prompt(self) -> Index:
        """[M] number of the prompt group."""
        numbers = {name: number for number, name in enumerate(dict.fromkeys(self.prompt_ids))}
        of_rollout = np.array([numbers[name] for name in self.prompt_ids], dtype=np.int64)
        return of_rollout[self.rollout] if len(self) else np.zeros(0, dtype=np.int64)

    def parts(self) -> list[tuple[int, slice]]:
        """Each rollout that has a token here, and its tokens among the M."""
        rows, starts = np.unique(self.rollout, return_index=True)
        edges = [*starts.tolist(), len(self)]
        return [(row, slice(*edge)) for row, edge in zip(rows.tolist(), pairwise(edges), strict=True)]

    def chosen(self, kept: npt.NDArray[np.bool_]) -> Tokens:
        """The tokens where `kept` [M] is set; rollouts keep their numbers."""
        return replace(
            self,
            rollout=self.rollout[kept],
            position=self.position[kept],
            p=self.p[kept],
            q=self.q[kept],
            rollout_statistics={name: values[kept] for name, values in self.rollout_statistics.items()},
            trainer_statistics={name: values[kept] for name, values in self.trainer_statistics.items()},
            rollout_top1=None if self.rollout_top1 is None else self.rollout_top1[kept],
            trainer_top1=None if self.trainer_top1 is None else self.trainer_top1[kept],
        )
