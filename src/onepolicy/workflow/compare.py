"""Two columns of logprobs -> verdicts, without an engine and without a run of one's own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from typing import cast

import numpy as np
import numpy.typing as npt

from onepolicy.errors import AlignmentError, UsageError
from onepolicy.judgement.floor import refuse_expired
from onepolicy.judgement.limits import Limits
from onepolicy.judgement.waive import applied
from onepolicy.numerics.checks import CHECKS as NUMERIC_CHECKS
from onepolicy.numerics.checks.metric_limits import metric_limits
from onepolicy.numerics.measurement import Measurement
from onepolicy.numerics.pair import pair_up
from onepolicy.records.parquet import ReadingBlock, RolloutBlock
from onepolicy.records.run import Run
from onepolicy.records.tokens import TokenState, digest_of_ids
from onepolicy.records.verdict import Judgement, Verdict
from onepolicy.sampling.checks.one_protocol import several_protocols
from onepolicy.tokens.spell import Speller
from onepolicy.workflow.conclude import conclude
from onepolicy.workflow.judge import JudgeRequest, judge_readings, judged_in_order, look_at
from onepolicy.workflow.measure import measure, measure_tokens
from onepolicy.workflow.progress import Silent
from onepolicy.workflow.whole import recording_verdicts, scoring_verdicts


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredReading:
    """A reading in a run directory."""

    run: Run
    name: str


_NO_ID = -1
"""columns of logprobs come without token ids"""
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
    if rollout.run.path.resolve() == trainer.run.path.resolve():
        request = JudgeRequest(rollout=rollout.name, trainer=trainer.name, limits=limits)
        return judge_readings(rollout.run, request, progress=Silent())
    refuse_expired(limits, [side.run.reading_info(side.name) for side in (rollout, trainer)])
    measured = measure(rollout.run, trainer.run, rollout.name, trainer.name, progress=Silent())
    verdicts: list[Verdict] = []
    for side in (rollout, trainer):
        verdicts += recording_verdicts(side.run, measured) + scoring_verdicts(side.run, side.name)
    look_at(rollout.run, measured, verdicts, rollout=rollout.name, trainer=trainer.run.reading_info(trainer.name))
    tokens = measure_tokens(rollout.run, trainer.run, trainer.name, rollouts=measured.rollouts)
    several = several_protocols(rollout.run.spans(), of_run=rollout.run.manifest.protocol.hash)
    verdicts += judged_in_order(tokens, measured, limits, stale=several)
    verdicts = applied(verdicts, limits, today=date.today())
    names = (rollout.name, trainer.name)
    return conclude(verdicts, measured, run=str(rollout.run.path), readings=names, speller=Speller(None))


def compare_columns(*, rollout: Logprobs, trainer: Logprobs, labels: ColumnLabels, limits: Limits) -> Judgement:
    """Judge two columns of logprobs of the same tokens.

    Shape of both: [N] with `labels.lengths`, [B, T] with `labels.mask`, or a list of R arrays [T_r].
    Unit: nats. NaN, infinities and sentinels are counted as invalid and fail; nothing is dropped.
    Raises: AlignmentError if the two do not describe the same tokens; UsageError if the shape is not said.
    """
    refuse_expired(limits, [])
    p, lengths = _rows(rollout, labels, side="rollout")
    q, trainer_lengths = _rows(trainer, labels, side="trainer")
    _same_lengths(lengths, trainer_lengths, labels)
    measured = Measurement(is_kl=labels.sampled)
    block = _block(lengths, labels)
    digests = [digest_of_ids(np.array([row])) for row in range(len(lengths))]
    measured.add(pair_up(block, digests, _reading(block, p), _reading(block, q)))
    verdicts = [*(check(measured, limits) for check in NUMERIC_CHECKS), *metric_limits(measured, limits)]
    verdicts = applied(verdicts, limits, today=date.today())
    return conclude(verdicts, measured, run="", readings=("rollout", "trainer"), speller=Speller(None))


def _rows(values: Logprobs, labels: ColumnLabels, *, side: str) -> tuple[npt.NDArray[np.float32], list[int]]:
    if isinstance(values, (list, tuple)) and values and np.ndim(values[0]) == 1:
        return _joined([_floats(row, side) for row in values], labels, side)
    array = _floats(cast("npt.ArrayLike", values), side)
    if array.ndim == 2:
        return _rectangle(array, labels, side)
    if array.ndim != 1:
        raise UsageError(f"{side} logprobs have the shape {array.shape}; give [N], [B, T], or a list of [T].")
    _refuse(labels.mask is not None, "mask", side, array.shape)
    lengths = [len(array)] if labels.lengths is None else _whole(labels.lengths)
    if sum(lengths) != len(array) or min(lengths, default=0) < 0:
        raise AlignmentError(f"{len(array)} {side} logprobs, and the lengths {lengths[:8]} add up to {sum(lengths)}.")
    return array, lengths


def _whole(lengths: Sequence[int]) -> list[int]:
    given = np.asarray(lengths)
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        some = given.tolist()[:4] if given.ndim == 1 else given.shape
        raise UsageError(f"`lengths` are whole numbers, one for each rollout; these are {given.dtype} {some}.")
    found: list[int] = given.tolist()
    return found


def _joined(
    rows: list[npt.NDArray[np.float32]], labels: ColumnLabels, side: str
) -> tuple[npt.NDArray[np.float32], list[int]]:
    odd = [row.shape for row in rows if row.ndim != 1]
    if odd:
        raise UsageError(f"{side} logprobs are a list in which one has the shape {odd[0]}; each must be [T].")
    _refuse(labels.mask is not None, "mask", side, "a list of [T]")
    _refuse(labels.lengths is not None, "lengths", side, "a list of [T]")
    return np.concatenate(rows), [len(row) for row in rows]


def _rectangle(
    array: npt.NDArray[np.float32], labels: ColumnLabels, side: str
) -> tuple[npt.NDArray[np.float32], list[int]]:
    """All entries, padding too: a position in a message is a column of the array. The mask says what is compared."""
    _refuse(labels.lengths is not None, "lengths", side, array.shape)
    if labels.mask is None:
        raise UsageError(f"{side} logprobs are two-dimensional; say with `mask` which entries are tokens to compare.")
    mask = np.asarray(labels.mask)
    if mask.shape != array.shape:
        raise AlignmentError(f"{side} logprobs have the shape {array.shape} and the mask {mask.shape}.")
    if not np.isin(mask, (0, 1)).all():
        raise UsageError("`mask` has entries other than 0 and 1. Give True at the tokens to compare.")
    return array.ravel(), [array.shape[1]] * array.shape[0]


def _refuse(given: bool, name: str, side: str, shape: object) -> None:
    if given:
        wanted = "[B, T]" if name == "mask" else "[N]"
        raise UsageError(f"`{name}` goes with logprobs of the shape {wanted}; the {side} side's are {shape}.")


def _floats(values: npt.ArrayLike, side: str) -> npt.NDArray[np.float32]:
    try:
        given = np.asarray(values)
        if given.dtype.kind not in "fiuO":
            raise TypeError(f"they have the type {given.dtype}")
        with np.errstate(over="ignore"):  # a sentinel beyond float32 becomes -inf, which is counted as invalid
            return given.astype(np.float32)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(
            f"{side} logprobs are no array of numbers ({error}). Give numpy arrays, or tensors as numpy can read them: "
            "tensor.detach().float().cpu()."
        ) from error


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
            name = labels.rollout_ids[row] if labels.rollout_ids is not None else f"row {row}"
            raise AlignmentError(f"rollout {name}: {p} rollout logprobs and {q} trainer logprobs for the same tokens.")


def _block(lengths: Iterable[int], labels: ColumnLabels) -> RolloutBlock:
    sizes = list(lengths)
    offsets = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
    ids = [f"row {row}" for row in range(len(sizes))]
    if labels.rollout_ids is not None:
        ids = [str(i) for i in labels.rollout_ids]
    compared = np.ones(int(offsets[-1]), dtype=np.bool_)
    if labels.mask is not None:
        compared = np.asarray(labels.mask).astype(np.bool_).ravel()
    return RolloutBlock(
        rollout_ids=ids,
        prompt_ids=[str(i) for i in labels.prompt_ids] if labels.prompt_ids is not None else ids,
        tags=["{}"] * len(sizes),
        offsets=offsets.astype(np.int64),
        token_ids=np.full(int(offsets[-1]), _NO_ID, dtype=np.int32),
        sampled=compared,
        loss_mask=compared,
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
