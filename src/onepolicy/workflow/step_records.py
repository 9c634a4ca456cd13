"""Where the steps of a timeline come from: a monitor's run, or blocks of recorded rollouts."""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from onepolicy.dumps.block import NO_STEP, RecordedBlock, block_digests, lags_of
from onepolicy.errors import DumpError, RunError
from onepolicy.monitor.state import STEPS_FILE
from onepolicy.numerics.pair import pair_up
from onepolicy.numerics.steps.record import record_of
from onepolicy.numerics.steps.summary import BY_MAXIMUM, StepSummary
from onepolicy.records.files import disk_errors
from onepolicy.records.parquet import ReadingBlock, RolloutBlock
from onepolicy.records.step import StepRecord

OPEN_STEPS = 64
"""steps whose sums are kept as they are while files are read; those of others are compressed"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Records in the order of their steps, each step once."""

    records: tuple[StepRecord, ...]
    written: tuple[StepRecord, ...] = ()
    """all of them as they ran, with those that were done again later"""
    notes: tuple[str, ...] = ()
    complete: bool = True
    """whether every line could be read"""


def monitored(run: Path) -> Steps:
    """The steps that a monitor wrote. A last line that is cut off is left out and said.

    Raises: RunError if there are none, or another line is no step.
    """
    path = run / STEPS_FILE
    with disk_errors(path):
        lines = path.read_bytes().split(b"\n")
    cut = lines.pop()
    records = [_record(path, number, line) for number, line in enumerate(lines, 1)]
    notes = [_cut_off(path, cut)] if cut else []
    return _in_order(records, notes, complete=not cut)


def summaries(blocks: Iterable[RecordedBlock]) -> list[StepRecord]:
    """One record for each step, in order; memory for one block and a few kB for each step.

    The rollouts of a step may come in any order and from several files. A rollout's lag is the distance of its version
    and the trainer's, as `lags_of` says.
    Raises: DumpError if rollouts do not say their step, or only one side has logprobs.
    """
    found = _Summaries()
    for block in blocks:
        if not block.rollouts.rollout_ids:
            continue
        _check(block)
        for step in np.unique(block.steps).tolist():
            _add(found.of(step), _rows(block, block.steps == step))
    return [record_of(found.of(step)) for step in found.steps()]


@dataclass(slots=True, kw_only=True)
class _Summaries:
    """Steps' sums, of which most are waiting in little memory: files may come back to any step."""

    _open: OrderedDict[int, StepSummary] = field(default_factory=OrderedDict)
    _packed: dict[int, bytes] = field(default_factory=dict)

    def of(self, step: int) -> StepSummary:
        """The sums of a step, to be added to before the next call."""
        if step not in self._open:
            self._open[step] = (
                _unpacked(step, self._packed.pop(step)) if step in self._packed else StepSummary(step=step)
            )
        self._open.move_to_end(step)
        if len(self._open) > OPEN_STEPS:
            oldest, summary = self._open.popitem(last=False)
            self._packed[oldest] = zlib.compress(np.concatenate(summary.vector()).tobytes(), 1)
        return self._open[step]

    def steps(self) -> list[int]:
        """In order."""
        return sorted([*self._open, *self._packed])


def _unpacked(step: int, packed: bytes) -> StepSummary:
    summary = StepSummary(step=step)
    values = np.frombuffer(zlib.decompress(packed), dtype=np.float64)
    names = [f.name for f in fields(summary) if f.name != "step"]
    for name in sorted(names, key=lambda name: name in BY_MAXIMUM):  # as `vector` puts them: the maxima last
        array = getattr(summary, name)
        array[...] = values[: array.size].reshape(array.shape)
        values = values[array.size :]
    return summary


def _record(path: Path, number: int, line: bytes) -> StepRecord:
    try:
        return StepRecord.model_validate_json(line)
    except ValidationError as error:
        raise RunError(
            f"{path}: line {number} is no step ({str(error.errors()[0]['msg'])[:120]}): {line[:60]!r}. The file is "
            "damaged there; without that line the timeline has a gap."
        ) from error


def _cut_off(path: Path, rest: bytes) -> str:
    return (
        f"{path.name}: the last line is cut off after {len(rest)} bytes and left out; the training was killed, or is "
        "writing it."
    )


def _in_order(records: list[StepRecord], notes: list[str], *, complete: bool) -> Steps:
    """A training that went back to a checkpoint wrote some steps twice: it is made of the later ones."""
    kept: list[StepRecord] = []
    again = 0
    for record in records:
        while kept and kept[-1].step >= record.step:
            kept.pop()
            again += 1
        kept.append(record)
    if again:
        notes = [*notes, f"{again} steps were written again after the training went back; the later ones are shown."]
    return Steps(records=tuple(kept), written=tuple(records), notes=tuple(notes), complete=complete)


def _check(block: RecordedBlock) -> None:
    if block.rollout is None or block.trainer is None:
        side = "trainer" if block.trainer is None else "rollout"
        raise DumpError(
            f"{_first(block)}: has no {side} logprobs, so there is nothing to compare at any step. Record both sides; "
            "onepolicy import says which column a format keeps them in."
        )
    if (block.steps == NO_STEP).any():
        raise DumpError(
            f"{_first(block)}: {int((block.steps == NO_STEP).sum())} of {len(block.steps)} rollouts do not say the "
            "step of the training that they are of, which a timeline needs. Without it: onepolicy compare."
        )


def _first(block: RecordedBlock) -> str:
    return f"rollout {block.rollouts.rollout_ids[0]}" if block.rollouts.rollout_ids else "a file"


def _add(summary: StepSummary, block: RecordedBlock) -> None:
    assert block.rollout is not None, "checked before"
    assert block.trainer is not None, "checked before"
    pair = pair_up(block.rollouts, block_digests(block), block.rollout, block.trainer)
    summary.add_pair(pair, lags=lags_of(block), advantages=block.advantages)


def _rows(block: RecordedBlock, chosen: npt.NDArray[np.bool_]) -> RecordedBlock:
    """Some rollouts of a block. Shape of chosen: [R]."""
    if chosen.all():
        return block
    tokens = np.repeat(chosen, np.diff(block.rollouts.offsets))
    offsets = np.concatenate([[0], np.cumsum(np.diff(block.rollouts.offsets)[chosen])])
    rows = np.flatnonzero(chosen).tolist()

    def part(value: RolloutBlock | ReadingBlock) -> dict[str, Any]:
        found: dict[str, Any] = {"offsets": offsets}
        for name in (f.name for f in fields(value) if f.name != "offsets"):
            column = getattr(value, name)
            if isinstance(column, np.ndarray):
                found[name] = column[tokens]
            elif isinstance(column, list):
                found[name] = [column[r] for r in rows] if column else column
        return found

    assert block.rollout is not None, "checked before"
    assert block.trainer is not None, "checked before"
    return replace(
        block,
        rollouts=replace(block.rollouts, **part(block.rollouts)),
        rollout=replace(block.rollout, **part(block.rollout)),
        trainer=replace(block.trainer, **part(block.trainer)),
        steps=block.steps[chosen],
        weight_versions=[block.weight_versions[r] for r in rows],
        trainer_versions=[block.trainer_versions[r] for r in rows],
        rewards=block.rewards[chosen],
        advantages=block.advantages[chosen],
    )
