"""The interval of a difference of means per token, paired by prompt group."""

from __future__ import annotations

import math
from dataclasses import dataclass

from onepolicy.judgement.limits import ALPHA, MIN_CLUSTERS, MIN_EFFECTIVE_CLUSTERS
from onepolicy.judgement.statistics import jackknife_error, t_quantile
from onepolicy.records.tokens import Float64


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A mean difference per token. The ends are NaN with too few groups to say anything."""

    value: float
    low: float
    high: float


def paired_difference(*, sums: Float64, lengths: Float64) -> Difference:
    """sum(sums) / sum(lengths) of a quantity of either sign, with a two-sided 99 % interval over prompt groups.

    Shape: [m], [m], one entry for each prompt group: the sum over its tokens of now minus then, and its tokens.
    Bounds: r +- t s with s the jackknife error over groups and t the quantile of Student's t with n_eff - 1 degrees of
    freedom, n_eff = sum(lengths)^2 / sum(lengths^2). Equal values everywhere give exactly 0 and 0.
    """
    kept = lengths > 0
    sums, lengths = sums[kept], lengths[kept]
    total = float(lengths.sum())
    value = float(sums.sum()) / total if total else math.nan
    effective = total * total / float((lengths * lengths).sum()) if total else 0.0
    if len(lengths) < MIN_CLUSTERS or effective < MIN_EFFECTIVE_CLUSTERS or not math.isfinite(value):
        return Difference(value=value, low=math.nan, high=math.nan)
    reach = t_quantile(effective - 1, ALPHA / 2) * jackknife_error(sums, lengths)
    return Difference(value=value, low=value - reach, high=value + reach)
