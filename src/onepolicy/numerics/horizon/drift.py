"""The running sum of d against what -KL per token explains."""

from __future__ import annotations

from onepolicy.judgement.limits import FAIL_ALPHAS
from onepolicy.judgement.statistics import estimate_ratio, t_quantile
from onepolicy.numerics.checks.mean_ratio import FLOAT32_ROUNDING
from onepolicy.numerics.horizon.result import Drift
from onepolicy.numerics.horizon.sums import GROUP_SUMS
from onepolicy.records.tokens import Float64

ALPHA = FAIL_ALPHAS["mean_ratio"]
"""of the two-sided test: it is the first identity, told as a drift"""


def drift(groups: Float64, *, missing: float) -> Drift:
    """Mean of d + k3 per token, which is exp(d) - 1, and the interval of what is compatible with none.

    Shape: [m, len(GROUP_SUMS)], one row for each prompt group, at least two. missing: share of the tokens without a
    logprob, which widens the interval by itself: which ones are missing may depend on the token. Unit: nats per token.
    """
    tokens = _column(groups, "tokens")
    found = estimate_ratio(sums=_column(groups, "excess"), lengths=tokens)
    width = width_of(found.standard_error, len(groups)) + FLOAT32_ROUNDING + missing
    return Drift(
        expected=-float(_column(groups, "k3").sum() / tokens.sum()),
        beyond=found.value,
        standard_error=found.standard_error,
        low=-width,
        high=width,
    )


def width_of(standard_error: float, groups: int) -> float:
    """Half of the interval, of chance alone."""
    return t_quantile(groups - 1, ALPHA / 2) * standard_error


def _column(groups: Float64, name: str) -> Float64:
    column: Float64 = groups[:, GROUP_SUMS.index(name)]
    return column
