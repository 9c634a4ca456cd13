"""The error by position of a fixed cohort: the same rollouts stand behind every position."""

from __future__ import annotations

import math

import numpy as np

from onepolicy.judgement.limits import ALPHA, MIN_CLUSTERS
from onepolicy.judgement.statistics import t_quantile
from onepolicy.numerics.horizon.result import Growth, PositionBucket
from onepolicy.numerics.horizon.sums import POSITION_SUMS, HorizonSums
from onepolicy.records.tokens import Float64

_TOKENS, _K3 = POSITION_SUMS.index("tokens"), POSITION_SUMS.index("k3")


def by_position(sums: HorizonSums) -> tuple[PositionBucket, ...]:
    """Means of the cohort's tokens; buckets of all rollouts would mix those that end early with those that do not."""
    edges = sums.cohort.edges.tolist()
    totals = sums.positions.sum(axis=0)
    return tuple(
        _bucket((start, end), dict(zip(POSITION_SUMS, row.tolist(), strict=True)))
        for start, end, row in zip(edges[:-1], edges[1:], totals, strict=True)
        if row[_TOKENS]
    )


def growth(positions: Float64) -> Growth | None:
    """k3 per token of the later half of the buckets over the earlier, with an interval over prompt groups.

    Shape: [m, P, len(POSITION_SUMS)]. None with fewer than two buckets, fewer than 12 groups in the cohort, or no
    mismatch in a half.
    """
    positions = positions[positions[:, :, _TOKENS].sum(axis=1) > 0]
    half = positions.shape[1] // 2
    if not half or len(positions) < MIN_CLUSTERS:
        return None
    first, second = positions[:, :half].sum(axis=1), positions[:, -half:].sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = _log_ratio(first.sum(axis=0), second.sum(axis=0))
        without = _log_ratio(first.sum(axis=0) - first, second.sum(axis=0) - second)
    if not np.isfinite(without).all() or not np.isfinite(ratio):
        return None
    m = len(positions)
    error = math.sqrt((m - 1) / m * float(((without - without.mean()) ** 2).sum()))
    width = t_quantile(m - 1, ALPHA) * error
    return Growth(ratio=math.exp(ratio), low=math.exp(ratio - width), high=math.exp(ratio + width))


def _log_ratio(first: Float64, second: Float64) -> Float64:
    """[..., len(POSITION_SUMS)] twice -> [...] log of k3 per token, second over first."""
    rate: Float64 = np.log(second[..., _K3] / second[..., _TOKENS]) - np.log(first[..., _K3] / first[..., _TOKENS])
    return rate


def _bucket(ends: tuple[int, int], sums: dict[str, float]) -> PositionBucket:
    tokens = sums["tokens"]
    return PositionBucket(
        start=ends[0],
        end=ends[1],
        tokens=int(tokens),
        mean_k3=sums["k3"] / tokens,
        mean_abs_d=sums["abs_d"] / tokens,
        mean_d=sums["d"] / tokens,
    )
