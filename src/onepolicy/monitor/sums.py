"""The sums of a training step on the device of its tensors, without ever waiting for it.

Every shape follows from the shapes that were handed over, never from a value. The formulas are those of
`numerics/summary.py` and `numerics/steps/summary.py`; tests hold both against each other, number by number.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from onepolicy.judgement.limits import GATE_TOKENS
from onepolicy.monitor.batch import UNKNOWN_LAG, Batch
from onepolicy.monitor.layout import LENGTH, SHAPES, SLICES
from onepolicy.numerics.buckets import CONFIDENCE_EDGES
from onepolicy.numerics.steps.summary import CELL_SUMS, CLUSTERS, CONFIDENCES, LAGS, ZERO_ROLLOUT
from onepolicy.numerics.summary import HISTOGRAM_BINS
from onepolicy.records.tokens import LARGEST_ROUNDING, TokenState

_BITS = 32 - HISTOGRAM_BINS.bit_length()
"""of a float32 that the histogram of |d| leaves out"""
_LN_2 = float(np.log(2))
_LOG2_E = float(np.log2(np.e))
_EDGES: list[float] = np.log(CONFIDENCE_EDGES[1:-1]).astype(np.float32).tolist()
_TOKENS = {"cpu": 4096}
_ON_DEVICE = 1 << 20
"""tokens at a time: on a CPU what stays in a core's cache, elsewhere about 200 MB of columns"""
_UNTHREADED = 2048
"""numbers at a time for which torch wakes no threads on a CPU: where other processes use the cores, waiting for them
takes milliseconds, and all else here less than one"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scores:
    """What a micro-batch's rollouts are judged by."""

    mean_k3: Tensor
    """[B] float64, 0 for a rollout without a token to compare"""
    outlier: Tensor
    """[B] bool: mean k3 beyond the limit, or invalid"""
    invalid: Tensor
    """[B] bool: a value on either side that is no logprob, for a token to compare"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Tokens:
    """Columns of [B, T]; 0 where a side has no logprob, so that nothing is added there."""

    p: Tensor
    q: Tensor
    both: Tensor
    d: Tensor
    abs_d: Tensor
    ratio_minus_1: Tensor
    k3: Tensor
    difference: Tensor
    """of the probabilities"""


class DeviceSums:
    """One step's vector (see `layout.py`), which micro-batches are added to."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.vector = torch.zeros(LENGTH, dtype=torch.float64, device=device)
        self._columns = torch.arange(len(CELL_SUMS), device=device)[:, None]

    def take(self) -> Tensor:
        """[LENGTH] the sums so far; the next micro-batch begins another step."""
        vector, self.vector = self.vector, torch.zeros_like(self.vector)
        return vector

    def add(self, batch: Batch, *, worst_rollout_kl: float, masks: bool) -> Scores:
        """Take in a micro-batch; masks: whether its outliers are left out of the loss."""
        if not batch.compared.numel():
            return self._add_nothing(batch)
        rows = max(1, _TOKENS.get(self.device.type, _ON_DEVICE) // batch.compared.shape[1])
        parts = [self._add(part, worst_rollout_kl, masks) for part in batch.split(rows)]
        return parts[0] if len(parts) == 1 else _joined(parts)

    def _add(self, batch: Batch, worst_rollout_kl: float, masks: bool) -> Scores:
        p_ok, q_ok = _is_logprob(batch.rollout_logprobs), _is_logprob(batch.trainer_logprobs)
        both = batch.compared & p_ok & q_ok
        tokens = _columns(batch, both)
        rows = _row_sums(tokens)
        mean_k3 = rows[4] / rows[0].clamp(min=1)
        invalid = (batch.compared & ~both).any(dim=1)
        outlier = (mean_k3 > worst_rollout_kl) | invalid
        self._add_counts(batch, rows, (p_ok, q_ok))
        self._add_totals(tokens, rows)
        self._add_clusters(batch, rows, mean_k3)
        self._add_cells(batch, tokens)
        self._add_advantages(batch, rows)
        outliers = outlier.sum().to(torch.float64)
        self._add_extras(outliers, outliers if masks else torch.zeros_like(outliers), batch.odd_masks)
        return Scores(mean_k3=mean_k3, outlier=outlier, invalid=invalid)

    def _view(self, name: str) -> Tensor:
        return self.vector[SLICES[name]].view(SHAPES[name])

    def _add_nothing(self, batch: Batch) -> Scores:
        """Rollouts without a position, or no rollouts at all."""
        self._view("rollouts")[:2] += batch.size
        none = torch.zeros(batch.size, dtype=torch.float64, device=self.device)
        return Scores(mean_k3=none, outlier=none.to(torch.bool), invalid=none.to(torch.bool))

    def _add_counts(self, batch: Batch, rows: Tensor, valid: tuple[Tensor, Tensor]) -> None:
        counts = self._view("rollouts")
        counts[0] += batch.size
        flags = torch.stack([~batch.compared.any(dim=1), rows[0] > 0, rows[1].abs() > _LN_2])
        counts[1:] += flags.sum(dim=1)
        for states, ok in zip(self._view("states"), valid, strict=True):
            states[TokenState.VALUE] += (batch.compared & ok).sum()
            states[TokenState.INVALID] += (batch.compared & ~ok).sum()

    def _add_totals(self, tokens: _Tokens, rows: Tensor) -> None:
        self._view("sums").add_(rows.sum(dim=1))
        bits = tokens.abs_d.to(torch.float32).view(torch.int32) >> _BITS
        self._view("histogram").index_add_(0, bits.flatten(), tokens.both.flatten().to(torch.float64))
        p, d = tokens.p.to(torch.float64), tokens.d
        self._view("moments").add_(torch.stack([p.sum(), rows[1].sum(), (p * p).sum(), (p * d).sum(), (d * d).sum()]))
        equal = (tokens.p.view(torch.int32) == tokens.q.view(torch.int32)) & tokens.both
        unsaturated = tokens.p < -1e-3
        self._view("equal").add_(torch.stack([equal.sum(), unsaturated.sum(), (equal & unsaturated).sum()]))
        self._add_same(tokens, rows[0])
        maxima = torch.stack([tokens.abs_d.amax(), rows[1].abs().amax(), tokens.difference.amax()])
        largest = self._view("largest")
        torch.maximum(largest, maxima, out=largest)

    def _add_same(self, tokens: _Tokens, counts: Tensor) -> None:
        zero = ((tokens.p == 0) & (tokens.q == 0) & tokens.both).sum(dim=1).to(torch.float64)
        equal = (tokens.p == tokens.q).all(dim=1) & (tokens.p < -1e-3).any(dim=1)
        whole = torch.where((zero == counts) & (counts >= ZERO_ROLLOUT), zero, 0.0)
        self._view("same").add_(torch.stack([zero.sum(), whole.sum(), equal.sum().to(torch.float64)]))

    def _add_clusters(self, batch: Batch, rows: Tensor, mean_k3: Tensor) -> None:
        tokens, k3, ratio = rows[0], rows[4], rows[5]
        weights = (GATE_TOKENS / tokens.clamp(min=1)).clamp(max=1.0)
        places = batch.groups.remainder(CLUSTERS)
        columns = torch.stack([tokens, ratio, k3, weights * tokens, weights * k3])
        index = places * len(columns) + torch.arange(len(columns), device=self.device)[:, None]
        self._view("clusters").view(-1).index_add_(0, index.flatten(), columns.flatten())
        self._view("worst").scatter_reduce_(0, places, mean_k3, "amax", include_self=True)

    def _add_cells(self, batch: Batch, tokens: _Tokens) -> None:
        lag = torch.where(batch.lags == UNKNOWN_LAG, len(LAGS) - 1, batch.lags.abs().clamp(max=8))
        cell = lag[:, None] * CONFIDENCES + sum(tokens.p >= edge for edge in _EDGES)
        columns = (tokens.both.to(torch.float64), tokens.d, tokens.abs_d, tokens.d.square() / 2, tokens.k3)
        index = cell.flatten() * len(CELL_SUMS) + self._columns
        self._view("cells").view(-1).index_add_(0, index.flatten(), torch.stack(columns).flatten())

    def _add_advantages(self, batch: Batch, rows: Tensor) -> None:
        there = (rows[0] > 0) & batch.advantages.isfinite()
        a = torch.where(there, batch.advantages, 0.0)
        d = torch.where(there, rows[1] / rows[0].clamp(min=1), 0.0)
        self._view("advantage").add_(torch.stack([there.to(torch.float64), a, a * a, d, d * d, a * d]).sum(dim=1))

    def _add_extras(self, outliers: Tensor, masked: Tensor, odd_masks: Tensor) -> None:
        self._view("extras")[:3] += torch.stack([outliers, masked, odd_masks])


def _joined(parts: list[Scores]) -> Scores:
    return Scores(
        mean_k3=torch.cat([part.mean_k3 for part in parts]),
        outlier=torch.cat([part.outlier for part in parts]),
        invalid=torch.cat([part.invalid for part in parts]),
    )


def _is_logprob(values: Tensor) -> Tensor:
    """As `records.tokens.states_of`."""
    return values.isfinite() & (values <= LARGEST_ROUNDING) & (values > -1000.0)


def _columns(batch: Batch, both: Tensor) -> _Tokens:
    p = torch.where(both, batch.rollout_logprobs, 0.0)
    q = torch.where(both, batch.trainer_logprobs, 0.0)
    wide_p, wide_q = p.to(torch.float64), q.to(torch.float64)
    d = wide_q - wide_p
    ratio_minus_1 = _expm1(d)
    probability = _exp(wide_p)
    beyond = (_exp(wide_q) - probability).abs()  # both apart, as the ratio is beyond float64
    difference = torch.where(ratio_minus_1.isinf(), beyond, (probability * ratio_minus_1).abs())
    return _Tokens(
        p=p,
        q=q,
        both=both,
        d=d,
        abs_d=d.abs(),
        ratio_minus_1=ratio_minus_1,
        k3=ratio_minus_1 - d,
        difference=difference,
    )


def _exp(values: Tensor) -> Tensor:
    """By `exp2`, which wakes no threads for a few thousand numbers where `exp` does."""
    return (values * _LOG2_E).exp2()


def _expm1(values: Tensor) -> Tensor:
    if values.device.type != "cpu":
        return values.expm1()
    return torch.cat([part.expm1() for part in torch.split(values.flatten(), _UNTHREADED)]).view_as(values)


def _row_sums(tokens: _Tokens) -> Tensor:
    """[len(ROLLOUT_SUMS), B]."""
    columns = (tokens.d, tokens.abs_d, tokens.d.square(), tokens.k3, tokens.ratio_minus_1, tokens.difference)
    count = tokens.both.sum(dim=1).to(torch.float64)
    d, abs_d, squares, k3, ratio_minus_1, difference = (column.sum(dim=1) for column in columns)
    return torch.stack([count, d, abs_d, squares / 2, k3, ratio_minus_1 + count, difference])
