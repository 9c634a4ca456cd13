"""What a comparison of behaviour says, as `onepolicy behave` shows it and writes it as JSON."""

from __future__ import annotations

from onepolicy.records.strict import Strict
from onepolicy.records.verdict import Status, Verdict


class BehaviourSide(Strict):
    """One configuration."""

    run: str
    engine: str
    protocol: dict[str, str]
    """the fields that are not the default's"""
    rollouts: int
    """that were compared"""


class BehaviourMetric(Strict):
    """One row of the table."""

    name: str
    unit: str
    a: float
    b: float
    difference: float
    """what the threshold holds for: a share of the length, else B minus A; of content the first minus the second"""
    p: float
    """adjusted for all metrics; chance alone gives some metric 0.05 or less in at most 5 % of comparisons"""
    threshold: float
    """a larger difference matters"""
    visible: float
    """a difference of this size is seen in 80 % of comparisons of so many prompts and samples"""


class RewardEquivalence(Strict):
    """The mean rewards of both sides, paired by prompt."""

    a: float
    b: float
    difference: float
    low: float
    high: float
    """90 % interval"""
    margin: float
    prompts_needed: float | None
    """with the same number of samples; None where it is decided, or no number would do"""


class Agreement(Strict):
    """Two rounds of evaluation; see `OutcomeAgreement`. None where there is one sample of each prompt."""

    success: float
    """a reward of this or more is a success"""
    rate_a: float
    rate_b: float
    across: float
    within_a: float | None
    within_b: float | None


class Behaviour(Strict):
    """Two configurations on the same prompts, and whether they behave alike."""

    a: BehaviourSide
    b: BehaviourSide
    prompts: int
    status: Status
    sentence: str
    """the answer in one sentence"""
    verdicts: tuple[Verdict, ...]
    metrics: tuple[BehaviourMetric, ...]
    reward: RewardEquivalence | None = None
    agreement: Agreement | None = None
    notes: tuple[str, ...] = ()

    @property
    def exit_status(self) -> int:
        """What the command ends with."""
        return self.status.exit_status

    def __str__(self) -> str:
        return self.sentence
