"""What share of sequence ratios leaves a band after more tokens than were measured."""

from __future__ import annotations

import math

import numpy as np

from onepolicy.judgement.limits import ALPHA
from onepolicy.judgement.statistics import t_quantile
from onepolicy.numerics.horizon.components import parts, persistent_variance
from onepolicy.numerics.horizon.result import Extrapolation
from onepolicy.numerics.horizon.sums import BLOCK, GROUP_SUMS
from onepolicy.records.tokens import Float64

MOST_TIMES = 8
"""the measured length: beyond it the persistent part, which grows with the square, decides alone and is least known"""
RESAMPLES = 2000
_AT_A_TIME = 4_000_000
"""numbers of draws in memory"""


def extrapolate(groups: Float64, tokens: int, band: tuple[float, float]) -> Extrapolation:
    """The sequence ratio's log after `tokens` tokens, S ~ N(-KL T, sigma^2 T + omega^2 T^2), and its share outside.

    Shape: [m, len(GROUP_SUMS)], one row for each prompt group. KL is the mean k3, sigma^2 and omega^2 are those of d.
    The interval is by a bootstrap over the groups, 99 % at each end: percentiles, moved outwards as a normal quantile
    of m groups is to Student's. Seeded, so the same run gives the same interval.
    """
    here = _parameters(groups.sum(axis=0))
    low, high = _bootstrap(groups, tokens, band)
    kl, per_token, persistent = (float(value) for value in here)
    return Extrapolation(
        tokens=tokens,
        mean=-kl * tokens,
        chance=math.sqrt(per_token * tokens),
        persistent=math.sqrt(max(persistent, 0.0)) * tokens,
        outside=float(outside(*here, tokens=tokens, band=band)),
        low=low,
        high=high,
    )


def outside(kl: Float64, per_token: Float64, persistent: Float64, *, tokens: int, band: tuple[float, float]) -> Float64:
    """Share of S ~ N(-KL T, sigma^2 T + omega^2 T^2) with exp(S) outside the band. Shape: [...] each -> [...].

    omega^2 is a variance, so an estimate below zero adds nothing.
    """
    from scipy.special import ndtr  # noqa: PLC0415 - a slow import that `onepolicy --help` must not pay

    spread = np.sqrt(per_token * tokens + np.maximum(persistent, 0.0) * float(tokens) ** 2)
    low, high = np.log(band)
    with np.errstate(divide="ignore", invalid="ignore"):
        share: Float64 = ndtr((low + kl * tokens) / spread) + ndtr((-kl * tokens - high) / spread)
    return share


def _parameters(sums: Float64) -> tuple[Float64, Float64, Float64]:
    """[..., len(GROUP_SUMS)] -> KL, sigma^2, omega^2 per token, each [...]."""
    found = parts(sums, "d")
    with np.errstate(divide="ignore", invalid="ignore"):
        kl = sums[..., GROUP_SUMS.index("k3")] / sums[..., GROUP_SUMS.index("tokens")]
    return kl, BLOCK * found["inside"], persistent_variance(found)


def _bootstrap(groups: Float64, tokens: int, band: tuple[float, float]) -> tuple[float, float]:
    from scipy.special import ndtr  # noqa: PLC0415 - a slow import that `onepolicy --help` must not pay

    m, rng = len(groups), np.random.default_rng(0)
    shares: list[Float64] = []
    size = min(RESAMPLES, _AT_A_TIME // m)
    for _ in range(math.ceil(RESAMPLES / size)):
        drawn = rng.multinomial(m, np.full(m, 1 / m), size=size).astype(np.float64) @ groups
        shares.append(outside(*_parameters(drawn), tokens=tokens, band=band))
    below = float(ndtr(-math.sqrt(m / (m - 1)) * t_quantile(m - 1, ALPHA)))
    low, high = np.quantile(np.concatenate(shares), [below, 1 - below])
    return float(low), float(high)
