"""A step's sums -> what is kept of it."""

from __future__ import annotations

import math

import numpy as np

from onepolicy.numerics.steps.summary import ADVANTAGE_SUMS, CELL_SUMS, LAGS, StepSummary
from onepolicy.numerics.table import reductions
from onepolicy.records.step import AdvantageLink, ColumnCounts, ConfidenceCell, LagCell, StepRecord
from onepolicy.records.tokens import Float64, TokenState

SAME_VERSION = (LAGS.index(0), LAGS.index(-1))
"""tokens of the trainer's own weights; where no version is known, none is apart"""
WORST_EDGES = tuple(float(f"{10 ** (eighth / 8):.4g}") for eighth in range(-48, 17))
"""of the mean k3 of a prompt's worst rollout: eight to a decade; an edge belongs to the interval below"""


def record_of(
    summary: StepSummary, *, time: float | None = None, about: dict[str, str] | None = None, masked: int = 0
) -> StepRecord:
    """The metrics of a step, its interval, and its tokens by lag and by confidence."""
    measured = summary.measurement()
    gate = measured.gate()
    return StepRecord(
        step=summary.step,
        time=time,
        rollouts=measured.rollouts,
        empty_rollouts=measured.empty_rollouts,
        compared=measured.compared,
        valid=measured.valid,
        invalid=int(summary.states[:, TokenState.INVALID].sum()),
        metrics=reductions(measured),
        prompts=len(measured.clusters),
        standard_error=_finite(gate.standard_error),
        low=_finite(gate.low),
        high=_finite(gate.high),
        by_lag=tuple(_lag_cell(lag, summary.cells[i].sum(axis=0)) for i, lag in enumerate(LAGS) if _used(summary, i)),
        by_confidence=tuple(
            ConfidenceCell(tokens=int(cell[0]), k3=float(cell[4]))
            for cell in summary.cells[list(SAME_VERSION)].sum(axis=0)
        ),
        worst_rollouts=_worst(summary),
        advantage=_link(summary.advantage),
        columns=_columns(summary),
        masked_rollouts=masked,
        about=about or {},
    )


def _used(summary: StepSummary, row: int) -> bool:
    return bool(summary.cells[row, :, 0].any())


def _lag_cell(lag: int, sums: Float64) -> LagCell:
    named = dict(zip(CELL_SUMS, sums.tolist(), strict=True))
    tokens = named["tokens"]
    return LagCell(
        lag=lag,
        tokens=int(tokens),
        mean_d=named["d"] / tokens,
        mean_abs_d=named["abs_d"] / tokens,
        mean_k3=named["k3"] / tokens,
    )


def _worst(summary: StepSummary) -> tuple[int, ...]:
    there = summary.worst[summary.clusters[:, 0] > 0]
    places = np.searchsorted(WORST_EDGES, there, side="left")
    return tuple(np.bincount(places, minlength=len(WORST_EDGES) + 1).tolist())


def _link(sums: Float64) -> AdvantageLink:
    named = dict(zip(ADVANTAGE_SUMS, sums.tolist(), strict=True))
    return AdvantageLink(**{**named, "rollouts": int(named["rollouts"])})


def _columns(summary: StepSummary) -> ColumnCounts:
    zeros, zero_rollout_tokens, equal_rollouts = summary.same.astype(np.int64).tolist()
    return ColumnCounts(
        unsaturated=int(summary.equal[1]),
        equal_rollouts=equal_rollouts,
        zeros=zeros,
        zero_rollout_tokens=zero_rollout_tokens,
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
