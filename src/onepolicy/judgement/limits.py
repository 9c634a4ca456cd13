"""The limits that a run is held against."""

from __future__ import annotations

from pydantic import ConfigDict, Field

from onepolicy.records.protocol import Strict


class Limits(Strict):
    """Defaults: two engines in the same precision on the same weights. A failing check says which limit would pass."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    mean_kl: float = Field(default=1e-4, gt=0, allow_inf_nan=False)
    """Limit of the mean KL, in nats per token."""
    max_abs_d: float = Field(default=0.5, gt=0, allow_inf_nan=False)
    """Limit of any token's |d|, in nats."""
    # 0.5 is above twenty-five times the root mean square of d at a KL of 1e-4, which is 0.35.
    worst_rollout_kl: float = Field(default=1e-2, gt=0, allow_inf_nan=False)
    """Limit of any rollout's mean k3, in nats per token."""
    outlier_rate: float = Field(default=0.15, gt=0, le=1)
    """Limit of the share of prompts with a rollout beyond the limit before."""
    # None bad among 24 prompts bounds the share by 11.7 % at 95 %.
    coverage: float = Field(default=0.99, gt=0, le=1)
    """Share of the tokens that must have a logprob on both sides."""
    rollout_coverage: float = Field(default=0.95, gt=0, le=1)
    """The same for each rollout alone."""
    # A rollout with gaps does not show in the share of a large run.


MIN_CLUSTERS = 12
"""fewer prompt groups than this decide nothing about a policy"""
MIN_EFFECTIVE_CLUSTERS = 8.0
"""the same, where few prompts hold most of the tokens"""
ALPHA = 0.01
"""one-sided level of each end of an interval"""
