"""Sequence ratios of rollouts: product and geometric mean of their importance ratios."""

from __future__ import annotations

import numpy as np

from onepolicy.numerics.impact.groups import GroupSums
from onepolicy.numerics.impact.piece import Piece
from onepolicy.records.impact import Sequences
from onepolicy.records.tokens import Float64

PRODUCT_BAND = (0.5, 2.0)
"""verl's preset decoupled_seq_is_rs"""
GEOMETRIC_BAND = (0.999, 1.001)
"""verl's preset decoupled_geo_rs"""
QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
COLUMNS = ("rollouts", "product_outside", "geometric_outside")
"""of the group sums"""


def sequence_sums(piece: Piece) -> dict[str, Float64]:
    """[R] under the names of `COLUMNS`."""
    logs = piece.log_product
    return {
        "rollouts": np.ones(len(logs)),
        "product_outside": _outside(logs, PRODUCT_BAND),
        "geometric_outside": _outside(logs / piece.lengths, GEOMETRIC_BAND),
    }


def sequences_of(groups: GroupSums, logs: Float64, lengths: Float64) -> Sequences | None:
    """Quantiles of all rollouts, and shares outside the bands; None without a rollout. Shape: [R], [R]."""
    product, geometric = (groups.mean(name, per="rollouts") for name in COLUMNS[1:])
    if product is None or geometric is None:
        return None
    return Sequences(
        product=_quantiles(logs),
        geometric=_quantiles(logs / lengths),
        product_band=PRODUCT_BAND,
        geometric_band=GEOMETRIC_BAND,
        product_outside=product,
        geometric_outside=geometric,
    )


def _outside(logs: Float64, band: tuple[float, float]) -> Float64:
    low, high = np.log(band)
    outside: Float64 = ((logs < low) | (logs > high)).astype(np.float64)
    return outside


def _quantiles(logs: Float64) -> dict[str, float]:
    with np.errstate(over="ignore"):
        found = np.exp(np.quantile(logs, QUANTILES, method="inverted_cdf"))
    return {f"p{round(100 * share):02}": float(value) for share, value in zip(QUANTILES, found, strict=True)}
