"""Files with the other side of rollouts that a run has already."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import pyarrow as pa

from onepolicy.dumps.block import NO_STEP, RecordedBlock, block_digests
from onepolicy.errors import DumpError
from onepolicy.records.block_tables import reading_block_table
from onepolicy.records.parquet import ReadingBlock
from onepolicy.records.run import Run
from onepolicy.workflow.recorded import Recording, Tally
from onepolicy.workflow.score import TRAINER
from onepolicy.workflow.versions import STEP


@dataclass(slots=True, kw_only=True)
class Waiting:
    """The rollouts of the first files, by the digest of their ids, until one of the second is theirs."""

    of_ids: dict[str, dict[str, str]]
    """digest -> rollout id -> step, in the order of the files"""
    ambiguous: int = 0
    """rollouts that could belong to several"""
    unmatched: int = 0
    """rollouts that belong to none"""

    @classmethod
    def of(cls, run: Run) -> Waiting:
        """All rollouts of a run."""
        found: defaultdict[str, dict[str, str]] = defaultdict(dict)
        for rollout in run.rollouts():
            found[rollout.digest][rollout.rollout_id] = rollout.tags.get(STEP, "")
        return cls(of_ids=dict(found))

    def taken(self, block: RecordedBlock) -> tuple[list[int], list[str]]:
        """Rows of the block whose ids the run has, and the run's names of them; each rollout is given away once."""
        kept, names = [], []
        for row, digest in enumerate(block_digests(block)):
            name = self._name_of(block, row, self.of_ids.get(digest, {}))
            if name is not None:
                del self.of_ids[digest][name]
                kept.append(row)
                names.append(name)
        self.unmatched += len(block.rollouts.rollout_ids) - len(kept)
        return kept, names

    def _name_of(self, block: RecordedBlock, row: int, known: dict[str, str]) -> str | None:
        """The rollout of the same name, else the first of the same step; steps that differ are other rollouts."""
        step = "" if block.steps[row] == NO_STEP else str(block.steps[row])
        fitting = [name for name, its_step in known.items() if not (step and its_step) or step == its_step]
        if block.rollouts.rollout_ids[row] in fitting:
            return block.rollouts.rollout_ids[row]
        self.ambiguous += len(fitting) > 1
        return fitting[0] if fitting else None


def the_side(recording: Recording, block: RecordedBlock, missing: str) -> ReadingBlock:
    """The column that is lacking, or the only one: of two rollout engines, the second is compared as the trainer."""
    wanted, only = (block.trainer, block.rollout) if missing == TRAINER else (block.rollout, block.trainer)
    side = wanted if wanted is not None else only
    if side is None:
        raise DumpError(f"{recording.name}: holds no logprobs, from row {block.rollouts.rollout_ids[0]}.")
    return side


def rows_of(side: ReadingBlock, block: RecordedBlock, kept: list[int], names: list[str]) -> pa.Table:
    """Some rows of a side under the run's names of them."""
    whole = reading_block_table(side, block_digests(block)).take(pa.array(kept))
    return whole.set_column(0, whole.schema.field(0), pa.array(names, type=pa.string()))


def scored_by(block: RecordedBlock, row: int) -> str:
    """The weights that scored a row; of a second rollout engine those that sampled, which it names as its own."""
    return block.trainer_versions[row] or block.weight_versions[row]


def said_of(other: Recording, first: Recording, tally: Tally, waiting: Waiting) -> list[str]:
    """What to know of how the second files fit the first."""
    said = [f"{other.name}: {tally.read} rows read, {tally.used} used, {tally.refused} refused"]
    if waiting.unmatched:
        said.append(f"{waiting.unmatched} of {tally.used} rollouts in {other.name} are not in {first.name}")
    if waiting.ambiguous:
        said.append(
            f"{waiting.ambiguous} rollouts in {other.name} have the ids of several in {first.name} and the rollout_id "
            "of none: they were put together in the order of the files"
        )
    return said
