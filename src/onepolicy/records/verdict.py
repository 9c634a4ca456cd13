"""What a judgement says, and the exit status that follows from it."""

from __future__ import annotations

from enum import Enum
from typing import Literal

from pydantic import Field

from onepolicy.records.strict import Strict

VerdictKind = Literal["on these tokens", "about the policy"]


class Status(Enum):
    """The three ways a question can end."""

    PASS = "pass"  # noqa: S105 - a verdict
    FAIL = "fail"
    UNKNOWN = "unknown"

    @property
    def exit_status(self) -> int:
        """0 pass, 1 fail, 3 unknown. 2, could not run, is an error and no status."""
        return {Status.PASS: 0, Status.FAIL: 1, Status.UNKNOWN: 3}[self]


class Evidence(Strict):
    """One place where a verdict can be seen."""

    rollout_id: str
    position: int | None = None
    """in the full sequence"""
    note: str


class Verdict(Strict):
    """A check's answer: something measured, held against a limit."""

    check: str
    status: Status
    required: bool = True
    """an informative check is shown and never decides"""
    kind: VerdictKind = "on these tokens"
    quantity: str = ""
    """the name of what was measured, as in the metric table"""
    value: float | None = None
    low: float | None = None
    """lower end of the interval that can fail the check"""
    high: float | None = None
    """upper end of the interval that can pass it"""
    limit: float | None = None
    unit: str = ""
    message: str
    """what was found, where, and what to do next; one or two sentences"""
    evidence: tuple[Evidence, ...] = ()


class Judgement(Strict):
    """All verdicts on one pair of readings."""

    run: str
    rollout_reading: str
    trainer_reading: str
    look: int = 1
    """which look at a run that grew this is; each other amount of data is one"""
    status: Status
    sentence: str
    """the answer in one sentence"""
    verdicts: tuple[Verdict, ...]
    metrics: dict[str, float] = Field(default_factory=dict)
    """named reductions over the compared tokens; see docs/metrics.md"""
    native: dict[str, dict[str, float]] = Field(default_factory=dict)
    """framework -> name on its dashboard -> value; see docs/reconcile.md"""
    counts: dict[str, int] = Field(default_factory=dict)
    coverage_by_language: dict[str, dict[str, int]] = Field(default_factory=dict)
    """language -> {"compared": ..., "absent": ...}; sampled tokens"""
    worst_rollouts: tuple[WorstRollout, ...] = ()

    def __str__(self) -> str:
        return self.sentence

    @property
    def exit_status(self) -> int:
        """What the command ends with."""
        return self.status.exit_status

    def numbers(self) -> dict[str, float]:
        """Flat, for trackers: `wandb.log(judgement.numbers())`. Names keep their meaning; without a value, left out."""
        kl = next((verdict for verdict in self.verdicts if verdict.check == "mean_kl"), None)
        bounds = {} if kl is None else {"kl": kl.value, "kl_low": kl.low, "kl_high": kl.high, "kl_limit": kl.limit}
        counted = {"tokens_compared": self.counts.get("tokens_compared"), "exit_status": self.exit_status}
        found: dict[str, float | None] = {**self.metrics, **bounds, **counted}
        return {f"onepolicy/{name}": float(value) for name, value in found.items() if value is not None}


class WorstToken(Strict):
    """One token on which the engines differ most."""

    position: int
    token_id: int
    text: str
    rollout_logprob: float
    trainer_logprob: float


class WorstRollout(Strict):
    """One of the rollouts on which the engines differ most."""

    rollout_id: str
    prompt_id: str
    tokens: int
    mean_abs_d: float
    sum_d: float
    max_abs_d: float
    before: str
    """text just before the worst token"""
    worst: WorstToken
    after: str


Judgement.model_rebuild()
