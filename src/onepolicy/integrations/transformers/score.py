"""Teacher-forced logprobs of a batch of sequences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from onepolicy.engines.contract import ScoreInput, Wanted
from onepolicy.integrations.transformers.padding import PaddedBatch, padded
from onepolicy.logprobs.compute import ComputedLogprobs, compute_logprobs
from onepolicy.logprobs.report import ReportRequest
from onepolicy.records.reading import ReadingRow, TopLists
from onepolicy.records.tokens import (
    BoolArray,
    Float32,
    IntArray,
    StateArray,
    TokenState,
    digest_of_ids,
    states_of,
)

ArrayT = TypeVar("ArrayT", Float32, IntArray)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreSettings:
    """How an engine lays out a batch."""

    padding_side: Literal["left", "right"]
    pad_id: int
    max_length: int | None
    """tokens from this position on are not scored"""
    starts: tuple[int, ...] | None = None
    """[B] the column of each sequence's first token, where padding is on both sides"""


def score_batch(model: Any, batch: Sequence[ScoreInput], wanted: Wanted, settings: ScoreSettings) -> list[ReadingRow]:
    """One row for each sequence, from one forward pass over all of them."""
    if not any(_computed(item, settings.max_length).any() for item in batch):
        return [_row(item, settings.max_length, answer=None, truncates=False) for item in batch]
    kept = [item.token_ids[: settings.max_length] for item in batch]
    laid_out = padded(
        kept, side=settings.padding_side, pad_id=settings.pad_id, device=model.device, starts=settings.starts
    )
    mask = _completion_mask(batch, laid_out, settings.max_length)
    request = ReportRequest(
        meaning=wanted.meaning,
        statistics=wanted.statistics,
        top=wanted.top if any(item.keep_top and item.report is None for item in batch) else 0,
        report_ids=_report_ids(batch, laid_out, mask),
    )
    with torch.no_grad():
        computed = compute_logprobs(
            model,
            input_ids=laid_out.input_ids,
            attention_mask=laid_out.attention_mask,
            completion_mask=mask,
            request=request,
        )
    return [
        _row(
            item,
            settings.max_length,
            answer=_answer(computed, row=row, start=laid_out.starts[row]),
            truncates=wanted.meaning.truncates,
        )
        for row, item in enumerate(batch)
    ]


def _computed(item: ScoreInput, max_length: int | None) -> BoolArray:
    """[T] tokens that get a number: asked for or reported on, with a token before them, within the model's length."""
    asked = item.wanted.copy()
    if item.report is not None:
        asked[item.report.positions] = True
    asked[:1] = False
    if max_length is not None:
        asked[max_length:] = False
    return asked


def _completion_mask(batch: Sequence[ScoreInput], laid_out: PaddedBatch, max_length: int | None) -> Tensor:
    mask = torch.zeros_like(laid_out.input_ids, dtype=torch.bool)
    for row, item in enumerate(batch):
        positions = np.flatnonzero(_computed(item, max_length)).astype(np.int32)
        mask[row, laid_out.columns(row, positions)] = True
    return mask


def _report_ids(batch: Sequence[ScoreInput], laid_out: PaddedBatch, mask: Tensor) -> Tensor | None:
    """[N, J] the ids to report for each token of the mask, row by row; zeros where nothing is asked for."""
    width = max((item.report.ids.shape[1] for item in batch if item.report is not None), default=0)
    if width == 0:
        return None
    table = torch.zeros((*mask.shape, width), dtype=torch.int64, device=mask.device)
    for row, item in enumerate(batch):
        if item.report is None:
            continue
        inside = item.report.positions < mask.shape[1] - laid_out.starts[row]
        columns = laid_out.columns(row, item.report.positions[inside])
        ids = torch.from_numpy(item.report.ids[inside].astype("int64")).to(mask.device)
        table[row, columns, : ids.shape[1]] = ids
    return table[mask]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Answer:
    """What was computed for the N tokens of one sequence."""

    positions: IntArray
    logprobs: Float32
    top1: IntArray
    statistics: dict[str, Float32]
    top_ids: IntArray | None
    top_logprobs: Float32 | None
    reported: Float32 | None


def _answer(computed: ComputedLogprobs, *, row: int, start: int) -> _Answer:
    mine = computed.rows == row
    report = computed.report
    return _Answer(
        positions=_int32(computed.positions[mine] - start),
        logprobs=_float32(report.logprobs[mine]),
        top1=_int32(report.top1[mine]),
        statistics={name: _float32(values[mine]) for name, values in report.statistics.items()},
        top_ids=None if report.top_ids is None else _int32(report.top_ids[mine]),
        top_logprobs=None if report.top_logprobs is None else _float32(report.top_logprobs[mine]),
        reported=None if report.reported is None else _float32(report.reported[mine]),
    )


def _row(item: ScoreInput, max_length: int | None, *, answer: _Answer | None, truncates: bool) -> ReadingRow:
    length = len(item.token_ids)
    logprobs, states = np.full(length, np.nan, dtype=np.float32), _states_without_values(item, max_length)
    digest = digest_of_ids(item.token_ids)
    if answer is None:
        return ReadingRow(rollout_id=item.rollout_id, digest=digest, logprobs=logprobs, states=states)
    asked = item.wanted[answer.positions]
    at = answer.positions[asked]
    states[at] = states_of(answer.logprobs[asked], truncates=truncates)
    logprobs[at] = np.where(states[at] == TokenState.VALUE, answer.logprobs[asked], np.nan)
    return ReadingRow(
        rollout_id=item.rollout_id,
        digest=digest,
        logprobs=logprobs,
        states=states,
        top1=_spread(answer.top1[asked], at, length=length, fill=-1),
        statistics={
            name: _spread(values[asked], at, length=length, fill=np.nan) for name, values in answer.statistics.items()
        },
        top=_top(item, answer, asked),
    )


def _states_without_values(item: ScoreInput, max_length: int | None) -> StateArray:
    states = np.where(item.wanted, TokenState.ABSENT, TokenState.MASKED).astype(np.uint8)
    if max_length is not None:
        states[max_length:][item.wanted[max_length:]] = TokenState.TRUNCATED
    return states


def _top(item: ScoreInput, answer: _Answer, asked: BoolArray) -> TopLists | None:
    if item.report is not None:
        return _reported(item.report, answer)
    if not item.keep_top or answer.top_ids is None or answer.top_logprobs is None:
        return None
    return TopLists(positions=answer.positions[asked], ids=answer.top_ids[asked], logprobs=answer.top_logprobs[asked])


def _reported(report: TopLists, answer: _Answer) -> TopLists:
    """The asked positions and ids; NaN at positions without a number: the first token, or past the model's length."""
    logprobs = np.full(report.ids.shape, np.nan, dtype=np.float32)
    if answer.reported is not None:
        index = {int(position): n for n, position in enumerate(answer.positions)}
        for n, position in enumerate(report.positions):
            if (found := index.get(int(position))) is not None:
                logprobs[n] = answer.reported[found, : report.ids.shape[1]]
    return TopLists(positions=report.positions, ids=report.ids, logprobs=logprobs)


def _spread(values: ArrayT, at: IntArray, *, length: int, fill: float) -> ArrayT:
    """[N] values at their positions of [T], `fill` elsewhere."""
    out: ArrayT = np.full(length, fill, dtype=values.dtype)
    out[at] = values
    return out


def _int32(values: Tensor) -> IntArray:
    return values.cpu().numpy().astype(np.int32)


def _float32(values: Tensor) -> Float32:
    return values.float().cpu().numpy()
