"""One training step's mismatch, as it is kept and shown."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from onepolicy.records.strict import Strict


class LagCell(Strict):
    """The tokens whose weights were `lag` steps from the trainer's, behind or ahead; d = trainer - rollout in nats."""

    lag: int
    """8 is 8 or more, or weights of another name; -1 is not known"""
    tokens: int
    mean_d: float
    mean_abs_d: float
    mean_k3: float


class ConfidenceCell(Strict):
    """The tokens of the trainer's own weight version (or of no known one) in one interval of `CONFIDENCE_EDGES`."""

    tokens: int
    k3: float
    """sum"""


class AdvantageLink(Strict):
    """Does the trainer already prefer what was rewarded? Sums over the rollouts that have an advantage."""

    rollouts: int = 0
    advantage: float = 0.0
    advantage_squared: float = 0.0
    d: float = 0.0
    """of the rollouts' mean d"""
    d_squared: float = 0.0
    advantage_d: float = 0.0


class ColumnCounts(Strict):
    """Tokens that say whether both sides were computed, among those with a logprob on both sides."""

    unsaturated: int
    """below a probability of 0.999 on the rollout side"""
    equal_rollouts: int
    """rollouts with such a token whose tokens are all the same in every bit on both sides"""
    zeros: int
    """exactly 0.0 on both sides"""
    zero_rollout_tokens: int
    """of these in rollouts of 8 tokens or more that have nothing else"""


class Alarm(Strict):
    """Something that a step showed."""

    step: int
    kind: Literal["limit", "jump", "stale", "outliers", "invalid", "monitor"]
    """beyond the limit; a jump against the steps before; weights that do not arrive; rollouts far off; no logprobs; the
    monitor itself failed"""
    message: str
    evidence: str = ""
    """where the rollouts are that show it"""


class StepRecord(Strict):
    """What is kept of one step; a line of `steps.jsonl`."""

    step: int
    time: float | None = None
    """seconds since 1970"""
    rollouts: int
    empty_rollouts: int | None = None
    """of these without a token to compare; None in lines of before"""
    compared: int
    """tokens that were to be compared"""
    valid: int
    """of these with a logprob on both sides"""
    invalid: int
    """of these with something on one side that is no logprob"""
    metrics: dict[str, float]
    """the rows of docs/metrics.md that have a value"""
    prompts: int
    standard_error: float | None = None
    """of the gate quantity over prompt groups; None if there are too few"""
    low: float | None = None
    high: float | None = None
    """99 % bounds of the gate quantity of this step alone"""
    by_lag: tuple[LagCell, ...] = ()
    by_confidence: tuple[ConfidenceCell, ...] = ()
    """[9] one for each interval of `CONFIDENCE_EDGES`"""
    worst_rollouts: tuple[int, ...] = ()
    """prompts by the mean k3 of their worst rollout, in the intervals of `WORST_EDGES` in numerics/steps/record.py; the
    first is below all edges, the last above them"""
    advantage: AdvantageLink = AdvantageLink()
    columns: ColumnCounts | None = None
    """None in lines of before"""
    masked_rollouts: int = 0
    """left out of the loss by the monitor"""
    about: dict[str, str] = Field(default_factory=dict)
    """what the trainer said of this step: engine versions, learning rate ..."""
    alarms: tuple[Alarm, ...] = ()


class StepEvent(Strict):
    """A time in which the mismatch was another than before, named with the whole run in view."""

    kind: Literal["level", "growing", "single step"]
    """another level that stays; weights that do not arrive; one or two steps that stand alone"""
    first: int
    """step"""
    last: int | None = None
    """step; None if it lasts until the end of what is known"""
    before: float | None = None
    """mean k3 of the trainer's own weights, standardised; None where it is not about that"""
    after: float | None = None
    """the same while it lasted, at its end for what grows"""
    declared: bool = False
    """whether the weight versions say it themselves"""
    because: tuple[str, ...] = ()
    """what the trainer says changed at its first step or just before"""
    link_z: float | None = None
    """does the trainer prefer what was rewarded meanwhile; None without advantages"""
    message: str
