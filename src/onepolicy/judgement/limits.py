"""The limits that a run is held against."""

from __future__ import annotations

from pydantic import Field

from onepolicy.records.protocol import Strict


class Limits(Strict):
    """Defaults: two engines in the same precision on the same weights. A failing check says which limit would pass."""

    mean_kl: float = Field(default=1e-4, gt=0, allow_inf_nan=False)
    """nats per token; the upper end of the interval must lie below"""
    max_abs_d: float = Field(default=0.5, gt=0, allow_inf_nan=False)
    """nats; no token may differ by more. Twenty-five times the root mean square of d at a KL of 1e-4 is 0.35"""
    worst_rollout_kl: float = Field(default=1e-2, gt=0, allow_inf_nan=False)
    """nats per token, mean of k3 in any one rollout"""
    coverage: float = Field(default=0.99, gt=0, le=1)
    """share of the compared tokens that must have a logprob on both sides"""


MIN_CLUSTERS = 12
"""fewer prompt groups than this decide nothing about a policy"""
MIN_EFFECTIVE_CLUSTERS = 8.0
"""the same, where few prompts hold most of the tokens"""
ALPHA = 0.01
"""one-sided level of each end of an interval"""
