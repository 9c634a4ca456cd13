"""Two columns of logprobs -> verdicts, without an engine and without a run of one's own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt

from onepolicy.errors import AlignmentError, UsageError
from onepolicy.judgement.limits import Limits
from onepolicy.numerics.checks import CHECKS as NUMERIC_CHECKS
from onepolicy.numerics.measurement import Measurement
from onepolicy.numerics.pair import pair_up
from onepolicy.records.parquet import ReadingBlock, RolloutBlock
from onepolicy.records.run import Run
from onepolicy.records.tokens import TokenState, digest_of_ids
from onepolicy.records.verdict import Judgement
from onepolicy.tokens.spell import Speller
from onepolicy.workflow.judge import JudgeRequest, conclude, judge_readings, measure, worst_rollout_text
from onepolicy.workflow.progress import Silent


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredReading:
    """A reading in a run directory."""

    run: Run
    name: str


Logprobs = npt.ArrayLike | Sequence[npt.ArrayLike]


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnLabels:
    """What two arrays of logprobs cannot say by themselves."""

    lengths: Sequence[int] | None = None
    """[R] of the rollouts that lie one after the other in one-dimensional arrays"""
    mask: npt.ArrayLike | None = None
    """[B, T], True at the tokens to compare, for two-dimensional arrays"""
    rollout_ids: Sequence[str] | None = None
    """[R]"""
    prompt_ids: Sequence[str] | None = None
    """[R] samples of one prompt share it; without it every rollout counts as independent"""
    sampled: bool = True
    """whether the rollout policy sampled the tokens under the meaning of its logprobs; else no KL is claimed"""


def compare_readings(*, rollout: StoredReading, trainer: StoredReading, limits: Limits) -> Judgement:
    """Judge two stored readings of the same tokens. Raises: ForeignReadingError if their ids differ."""
    if rollout.run.path == trainer.run.path:
        request = JudgeRequest(rollout=rollout.name, trainer=trainer.name, limits=limits)
        return judge_readings(rollout.run, request, progress=Silent())
    measured = measure(rollout.run, trainer.run, rollout.name, trainer.name, progress=Silent())
    verdicts = [check(measured, limits) for check in NUMERIC_CHECKS]
    return conclude(verdicts, measured, run=str(rollout.run.path), readings=(rollout.name, trainer.name))


def compare_columns(*, rollout: Logprobs, trainer: Logprobs, labels: ColumnLabels, limits: Limits) -> Judgement:
    """Judge two columns of logprobs of the same tokens.

    Shape of both: [N] with `labels.lengths`, [B, T] with `labels.mask`, or a list of R arrays [T_r].
    Unit: nats. NaN, infinities and sentinels are counted as invalid and fail; nothing is dropped.
    Raises: AlignmentError if the two do not describe the same tokens; UsageError if the shape is not said.
    """
    p, lengths = _rows(rollout, labels, side="rollout")
    q, trainer_lengths = _rows(trainer, labels, side="trainer")
    _same_lengths(lengths, trainer_lengths, labels)
    measured = Measurement(is_kl=labels.sampled)
    block = _block(lengths, labels)
    digests = [digest_of_ids(np.array([row])) for row in range(len(lengths))]
    measured.add(pair_up(block, digests, _reading(block, p), _reading(block, q)))
    verdicts = [check(measured, limits) for check in NUMERIC_CHECKS]
    speller = Speller(None)
    worst = tuple(worst_rollout_text(detail, speller) for detail in measured.worst_by_token)
    return conclude(verdicts, measured, run="", readings=("rollout", "trainer"), worst=worst)


def _rows(values: Logprobs, labels: ColumnLabels, *, side: str) -> tuple[npt.NDArray[np.float32], list[int]]:
    if isinstance(values, (list, tuple)) and values and np.ndim(values[0]) == 1:
        rows = [_floats(row, side) for row in values]
        return np.concatenate(rows), [len(row) for row in rows]
    array = _floats(cast("npt.ArrayLike", values), side)
    if array.ndim == 2:
        return _masked(array, labels, side)
    if array.ndim != 1:
        raise UsageError(f"{side} logprobs have the shape {array.shape}; give [N], [B, T], or a list of [T].")
    lengths = [len(array)] if labels.lengths is None else [int(n) for n in labels.lengths]
    if sum(lengths) != len(array) or min(lengths, default=0) < 0:
        raise AlignmentError(f"{len(array)} {side} logprobs, but the lengths add up to {sum(lengths)}.")
    return array, lengths


def _masked(
    array: npt.NDArray[np.float32], labels: ColumnLabels, side: str
) -> tuple[npt.NDArray[np.float32], list[int]]:
    if labels.mask is None:
        raise UsageError(f"{side} logprobs are two-dimensional; say with `mask` which entries are tokens to compare.")
    mask = np.asarray(labels.mask).astype(bool)
    if mask.shape != array.shape:
        raise AlignmentError(f"{side} logprobs have the shape {array.shape} and the mask {mask.shape}.")
    return array[mask], mask.sum(axis=1).tolist()


def _floats(values: npt.ArrayLike, side: str) -> npt.NDArray[np.float32]:
    try:
        array: npt.NDArray[np.float32] = np.asarray(values, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"{side} logprobs are no array of numbers ({error}). Give numpy arrays, or tensors on the CPU without "
            "a gradient."
        ) from error
    return array


def _same_lengths(lengths: list[int], trainer_lengths: list[int], labels: ColumnLabels) -> None:
    if len(lengths) != len(trainer_lengths):
        raise AlignmentError(
            f"{len(lengths)} rollouts on the rollout side, {len(trainer_lengths)} on the trainer side."
        )
    for name, given in (("rollout_ids", labels.rollout_ids), ("prompt_ids", labels.prompt_ids)):
        if given is not None and len(given) != len(lengths):
            raise AlignmentError(f"{len(lengths)} rollouts and {len(given)} {name}.")
    for row, (p, q) in enumerate(zip(lengths, trainer_lengths, strict=True)):
        if p != q:
            name = labels.rollout_ids[row] if labels.rollout_ids else f"row {row}"
            raise AlignmentError(f"rollout {name}: {p} rollout logprobs and {q} trainer logprobs for the same tokens.")


def _block(lengths: Iterable[int], labels: ColumnLabels) -> RolloutBlock:
    sizes = list(lengths)
    offsets = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
    ids = [str(i) for i in labels.rollout_ids] if labels.rollout_ids else [f"row {row}" for row in range(len(sizes))]
    ones = np.ones(int(offsets[-1]), dtype=np.bool_)
    return RolloutBlock(
        rollout_ids=ids,
        prompt_ids=[str(i) for i in labels.prompt_ids] if labels.prompt_ids else ids,
        tags=["{}"] * len(sizes),
        offsets=offsets.astype(np.int64),
        token_ids=np.zeros(int(offsets[-1]), dtype=np.int32),
        sampled=ones,
        loss_mask=ones,
    )


def _reading(block: RolloutBlock, logprobs: npt.NDArray[np.float32]) -> ReadingBlock:
    return ReadingBlock(
        rollout_ids=block.rollout_ids,
        digests=[],
        offsets=block.offsets,
        logprobs=logprobs,
        states=np.full(len(logprobs), TokenState.VALUE, dtype=np.uint8),
        top1=None,
    )
