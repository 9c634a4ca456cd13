"""What `onepolicy horizon` says, as it is shown and written as JSON."""

from __future__ import annotations

from pydantic import Field

from onepolicy.records.strict import Strict
from onepolicy.records.verdict import Status, Verdict


class Drift(Strict):
    """By how much the running sum of d leaves -KL per token behind; d is trainer minus rollout, in nats."""

    expected: float
    """-KL, by k3: what a token adds on average whatever the cause of the mismatch is"""
    beyond: float
    """what a token adds on average over this"""
    standard_error: float
    low: float
    high: float
    """ends of the interval of what is compatible with none"""


class Components(Strict):
    """Means of 32 tokens each, taken apart: how they scatter inside a rollout, and how rollouts differ for good."""

    rollouts: int
    blocks: int
    per_token: float
    """sigma^2: variance inside a rollout, per token; it adds up with the number of tokens"""
    persistent: float
    """omega^2: variance of what each token of a rollout has for good; it adds up with the square of the number. An
    estimate of none is as often below zero as above"""
    low: float
    high: float
    """99 % at each end; below zero is none"""
    f: float
    p: float
    """chance of such an F, or a larger one, if no rollout has anything of its own"""


class PositionBucket(Strict):
    """Tokens of the fixed cohort at these positions of their completions, the end not included."""

    start: int
    end: int
    tokens: int
    mean_k3: float
    mean_abs_d: float
    mean_d: float


class Growth(Strict):
    """k3 per token of the cohort's later half over that of its earlier half; a bucket in the middle is in neither."""

    ratio: float
    low: float
    high: float
    """99 % at each end"""


class Extrapolation(Strict):
    """The log of the sequence ratio after so many tokens, taken as normal: S ~ N(-KL T, sigma^2 T + omega^2 T^2)."""

    tokens: int
    mean: float
    """-KL T, in nats"""
    chance: float
    """sigma sqrt(T), in nats"""
    persistent: float
    """omega T, in nats"""
    outside: float
    """share of sequence ratios outside the band"""
    low: float
    high: float
    """99 % at each end, by a bootstrap over prompt groups"""


class Horizon(Strict):
    """Two readings of a run, over a horizon."""

    run: str
    rollout_reading: str
    trainer_reading: str
    tokens: int
    """the horizon"""
    band: tuple[float, float]
    """of the sequence ratio"""
    status: Status
    sentence: str
    verdicts: tuple[Verdict, ...]
    counts: dict[str, int] = Field(default_factory=dict)
    measured_tokens: int
    """half of the prompts have a rollout of so many tokens; those that do are the cohort"""
    drift: Drift | None = None
    bias: Components | None = None
    """of exp(d) - 1, whose mean is none in every rollout whatever its KL is: what is persistent in it is a fault"""
    spread: Components | None = None
    """of d: what is persistent in it also holds that rollouts differ in their KL"""
    extrapolation: Extrapolation | None = None
    refused: str = ""
    """why there is no extrapolation"""
    at_measured: Extrapolation | None = None
    """the same formula at the measured length, to be held against `observed_outside`"""
    observed_outside: float | None = None
    """share of the cohort's sequence ratios that are outside the band at the measured length"""
    growth: Growth | None = None
    positions: tuple[PositionBucket, ...] = ()

    @property
    def exit_status(self) -> int:
        """What the command ends with."""
        return self.status.exit_status

    def __str__(self) -> str:
        return self.sentence
