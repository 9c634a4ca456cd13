"""What `onepolicy parallel` found: the same sequences' logits under several layouts of one model."""

from __future__ import annotations

from pydantic import Field

from onepolicy.records.strict import Strict
from onepolicy.records.verdict import Status, Verdict


class LogitPlace(Strict):
    """Where two logits are farthest apart in units in the last place."""

    sequence: str
    position: int
    """the logit is of the token after this one"""
    token_id: int
    base: float
    value: float


class LayoutResult(Strict):
    """One layout against the base run, which is one process alone. Over all ranks: the farthest of them counts."""

    layout: str
    """fsdp=2, tp=2; `repeat` is the base run once more, in a new process"""
    ranks: int
    missing: str = ""
    """why it could not run; then nothing below was measured"""
    notes: tuple[str, ...] = ()
    identical: int = 0
    """sequences whose logits are those of the base run, bit for bit, on every rank"""
    repeats: bool = False
    """whether a second pass in the same processes gave every sequence the same digest again"""
    bitwise_share: float | None = None
    """of all logits"""
    max_ulp: int | None = None
    """largest distance of two logits in units in the last place; large where logits are near zero"""
    mean_abs_d: float | None = None
    """of the logprobs of the sequences' tokens, in nats, each over the full vocabulary in float64"""
    max_abs_d: float | None = None
    worst: LogitPlace | None = None
    digests: dict[str, str] = Field(default_factory=dict)
    """sequence -> SHA-256 of rank 0's logits"""

    @property
    def is_identical(self) -> bool:
        """Whether every logit on every rank is that of the base run, and stays so."""
        return self.bitwise_share == 1.0 and self.repeats


class ParallelResult(Strict):
    """The answer."""

    spec: str
    status: Status
    sentence: str
    sequences: int
    tokens: int
    vocabulary: int
    dtype: str
    """of the logits"""
    threads: int
    """of each rank, the same under every layout"""
    base_repeats: bool
    """whether the base run's second pass gave the same digests"""
    digests: dict[str, str]
    """sequence -> SHA-256 of the base run's logits: dtype, shape and values"""
    layouts: tuple[LayoutResult, ...]
    verdicts: tuple[Verdict, ...]
    environment: dict[str, str]

    @property
    def exit_status(self) -> int:
        """What the command ends with."""
        return self.status.exit_status
