"""The limits that a run is held against."""

from __future__ import annotations

from datetime import date

from pydantic import ConfigDict, Field, model_validator

from onepolicy.records.floor import Floor
from onepolicy.records.strict import Number, Strict


class MetricLimit(Strict):
    """A limit on one row of the table of metrics (docs/metrics.md); an exact statement about these tokens."""

    at_most: Number | None = Field(default=None, allow_inf_nan=False)
    at_least: Number | None = Field(default=None, allow_inf_nan=False)
    required: bool = True

    @model_validator(mode="after")
    def _says_something(self) -> MetricLimit:
        if (self.at_most is None) == (self.at_least is None):
            raise ValueError("say either at_most or at_least")
        return self


class Waiver(Strict):
    """A check that may fail for a while. One that is not needed is an error, so that none outlives its reason."""

    check: str
    reason: str = Field(min_length=1)
    until: date
    """the last day on which it holds"""


class Limits(Strict):
    """Defaults: two engines in the same precision on the same weights. A failing check says which limit would pass."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    mean_kl: Number = Field(default=1e-4, gt=0, allow_inf_nan=False)
    """Limit of the mean KL, in nats per token."""
    max_abs_d: Number = Field(default=0.5, gt=0, allow_inf_nan=False)
    """Limit of any token's |d|, in nats."""
    # 0.5 is above twenty-five times the root mean square of d at a KL of 1e-4, which is 0.35.
    worst_rollout_kl: Number = Field(default=1e-2, gt=0, allow_inf_nan=False)
    """Limit of any rollout's mean k3, in nats per token."""
    outlier_rate: Number = Field(default=0.25, gt=0, le=1)
    """Limit of the share of prompts with a rollout beyond the limit before."""
    # None bad among 24 prompts bounds the share by 17.5 % at 99 %; 17 prompts are needed.
    coverage: Number = Field(default=0.99, gt=0, le=1)
    """Share of the tokens that must have a logprob on both sides."""
    rollout_coverage: Number = Field(default=0.95, gt=0, le=1)
    """The same for each rollout alone."""
    # A rollout with gaps does not show in the share of a large run.
    informative: tuple[str, ...] = ()
    """Names of checks that are shown and never decide."""
    metrics: dict[str, MetricLimit] = Field(default_factory=dict)
    """Limits on rows of the table of metrics, by name."""
    waivers: tuple[Waiver, ...] = ()
    """Checks that may fail for a while."""
    floor: Floor | None = None
    """The noise floor that some of the limits are multiples of; it must hold for a side of what is judged."""

    @classmethod
    def numbers(cls) -> tuple[str, ...]:
        """Names of the limits that are one number each."""
        return tuple(name for name, field in cls.model_fields.items() if field.annotation is float)


MIN_CLUSTERS = 12
"""fewer prompt groups than this decide nothing about a policy"""
MIN_EFFECTIVE_CLUSTERS = 8.0
"""the same, where few prompts hold most of the tokens"""
ALPHA = 0.01
"""one-sided level of each end of an interval"""
FAIL_ALPHAS = {"mean_kl": ALPHA, "outlier_rollouts": 0.005, "mean_ratio": 1e-3, "sampled_as_reported": 6e-5}
"""the level at which each check that infers may fail a policy that is within its limits"""
# Together 1.6 % at one look and 4.8 % at three, so that no correction for their number is left to do: Holm's at 5 %
# rejects whatever these reject.
LOOK_ALPHAS = (ALPHA, 0.015, 0.025)
"""the level of the upper end at the first, second and third look at a run that grows; 5 % together"""
GATE_TOKENS = 128
"""a longer rollout counts with its own mean, but weighs as much as one of this many tokens"""
