"""The interval of a ratio of sums over prompt groups."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from onepolicy.judgement.limits import ALPHA
from onepolicy.records.tokens import Float64

UPPER_SECOND_ORDER = 1 / 3
"""of the upper bound's exponent"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean per token with its uncertainty."""

    value: float
    low: float
    """one-sided lower bound"""
    high: float
    """one-sided upper bound"""
    standard_error: float
    clusters: int
    effective_clusters: float


def estimate_ratio(*, sums: Float64, lengths: Float64, upper_alpha: float = ALPHA) -> Estimate:
    """sum(sums) / sum(lengths) of a quantity that is never negative, with bounds that respect the prompt groups.

    Shape: [m], [m], one entry for each prompt group. NaN if there is nothing, or fewer than two groups for the bounds.
    The lower bound has the level ALPHA; the upper one, which alone lets a run pass, `upper_alpha`.
    Bounds: r exp(-E) and r exp(E + E^2 / 3) with E = t s / r, s the jackknife error over groups and t the quantile of
    Student's t with n_eff - 1 degrees of freedom, n_eff = sum(lengths)^2 / sum(lengths^2). The plain delta method
    passes what it should fail in 12 to 50 % of cases at a nominal 5 % when lengths differ and tails are heavy. The
    square is the second order of a power-transformed interval (power -2/3): both r and s are small when a sample misses
    the tail, so the upper end must give more than the lower one. How often the bounds err: benchmarks/interval.py.
    """
    kept = lengths > 0
    sums, lengths = sums[kept], lengths[kept]
    clusters, total = len(lengths), float(lengths.sum())
    if not clusters:
        return _unknown(math.nan, 0, 0.0)
    value = float(sums.sum()) / total
    effective = total * total / float((lengths * lengths).sum())
    if clusters < 2 or not math.isfinite(value):
        return _unknown(value, clusters, effective)
    error = jackknife_error(sums, lengths)
    low, high = _log_bounds(value, error, effective, upper_alpha)
    return Estimate(
        value=value, low=low, high=high, standard_error=error, clusters=clusters, effective_clusters=effective
    )


def prompts_needed(estimate: Estimate, *, limit: float, upper_alpha: float = ALPHA) -> float:
    """How many prompt groups of the same kind would decide; infinite if the value sits on the limit, or has no error.

    Source: m' = m (E / E*)^2, with E the exponent of the bounds and E* the one at which a bound touches the limit.
    """
    if estimate.value == 0:
        return 0.0
    distance = _exponent_to(limit, estimate.value)
    if distance == 0 or not math.isfinite(estimate.standard_error):
        return math.inf
    alpha = upper_alpha if distance > 0 else ALPHA
    quantile = t_quantile(max(estimate.effective_clusters - 1, 1.0), alpha)
    return estimate.clusters * (quantile * estimate.standard_error / estimate.value / distance) ** 2


def _exponent_to(limit: float, value: float) -> float:
    """The exponent E at which the bound on the limit's side reaches it."""
    distance = math.log(limit / value)
    if distance <= 0:
        return distance
    return (math.sqrt(1 + 4 * UPPER_SECOND_ORDER * distance) - 1) / (2 * UPPER_SECOND_ORDER)


def t_quantile(freedom: float, alpha: float) -> float:
    """The 1 - alpha quantile of Student's t with this many degrees of freedom."""
    from scipy.special import stdtrit  # noqa: PLC0415 - a slow import that `onepolicy --help` must not pay

    return float(stdtrit(freedom, 1 - alpha))


def binomial_bounds(*, bad: int, of: int, lower_alpha: float, upper_alpha: float) -> tuple[float, float]:
    """One-sided exact lower and upper bounds of a rate. Source: Clopper and Pearson (1934)."""
    from scipy.special import betaincinv  # noqa: PLC0415 - a slow import that `onepolicy --help` must not pay

    low = float(betaincinv(bad, of - bad + 1, lower_alpha)) if bad else 0.0
    high = float(betaincinv(bad + 1, of - bad, 1 - upper_alpha)) if bad < of else 1.0
    return low, high


def jackknife_error(sums: Float64, lengths: Float64) -> float:
    """Of sum(sums) / sum(lengths), over the groups. Shape: [m], [m], at least two groups, none of length 0."""
    m, scale = len(sums), float(np.abs(sums).max()) or 1.0
    sums = sums / scale  # the square of a sum above 1e154 is beyond float64
    without = (sums.sum() - sums) / (lengths.sum() - lengths)
    return scale * float(np.sqrt((m - 1) / m * ((without - without.mean()) ** 2).sum()))


def _log_bounds(value: float, error: float, effective: float, upper_alpha: float) -> tuple[float, float]:
    if value <= 0 or error == 0:
        return value, value
    freedom, scale = max(effective - 1, 1e-3), error / value
    exponent = t_quantile(freedom, upper_alpha) * scale
    upper = exponent * (1 + UPPER_SECOND_ORDER * exponent)  # a power would raise where a product is infinite
    low = value * math.exp(-t_quantile(freedom, ALPHA) * scale)
    return low, value * math.exp(upper) if upper < 700 else math.inf


def _unknown(value: float, clusters: int, effective: float) -> Estimate:
    return Estimate(
        value=value,
        low=math.nan,
        high=math.nan,
        standard_error=math.nan,
        clusters=clusters,
        effective_clusters=effective,
    )
