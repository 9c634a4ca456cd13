"""What a reader of recorded files gives, and what it says about the numbers in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from onepolicy.errors import AlignmentError
from onepolicy.records.rollout import Rollout
from onepolicy.records.tokens import Float32, StateArray

if TYPE_CHECKING:
    from onepolicy.dumps.block import RecordedBlock
    from onepolicy.dumps.file import DumpFile


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Column:
    """One side's logprobs of one rollout. Entry i belongs to token i; where there is no value the state says why."""

    logprobs: Float32
    """[T] nats, NaN where there is none"""
    states: StateArray
    """[T] of `TokenState`"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RecordedRollout:
    """One row of a dump."""

    where: str
    """file and row, as a message names them"""
    rollout: Rollout
    rollout_logprobs: Column | None
    """None if the file does not hold this side"""
    trainer_logprobs: Column | None
    step: int | None = None
    """of the training"""
    weight_version: str = ""
    """of the policy that sampled; empty if the file does not say"""
    trainer_version: str = ""
    """of the weights that the trainer scored with"""
    advantage: float | None = None

    def __post_init__(self) -> None:
        for name, column in (("rollout", self.rollout_logprobs), ("trainer", self.trainer_logprobs)):
            if column is not None and len(column.logprobs) != len(self.rollout.token_ids):
                raise AlignmentError(
                    f"{self.where}: {len(column.logprobs)} {name} logprobs for {len(self.rollout.token_ids)} tokens"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A row whose fields contradict each other; it is counted and named, never guessed."""

    where: str
    field: str
    why: str
    """what was found, with the numbers, and what to do"""

    def __str__(self) -> str:
        return f"{self.where}: {self.field}: {self.why}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """How one framework records. One folder of `integrations`, and one line in its table."""

    name: str
    """as --format takes it: nemo-rl"""
    title: str
    """what it is and where it is found, for a list of formats"""
    recognises: Callable[[DumpFile], bool]
    """from the content of the file, not from its name"""
    rows: Callable[[DumpFile], Iterable[RecordedRollout | Refusal]] | None = None
    """the rollouts of a file, one after the other"""
    blocks: Callable[[DumpFile], Iterator[RecordedBlock]] | None = None
    """or many at a time, for a format that holds columns"""
    group: Callable[[DumpFile], str] | None = None
    """for a format that spreads a rollout over files: what the names of such files share; reads nothing"""
    together: Callable[[Sequence[DumpFile]], Iterable[RecordedRollout | Refusal]] | None = None
    """the rollouts of all files of one group; there if `group` is"""
    sampled_from_reported: bool = True
    """whether the rollout side's logprobs are of the distribution that its tokens were drawn from (processed by
    temperature and truncation, if there was any)"""
    trainer: Literal["recomputed", "current", "absent"] = "recomputed"
    """whose the trainer's logprobs are: recomputed with the weights that sampled, before the update, or of those being
    trained, so that staleness is in the numbers"""
    dtype: str = ""
    """in which the numbers were kept, if it is less than float32"""
    notes: tuple[str, ...] = field(default=())
    """what a user must know of these numbers"""
