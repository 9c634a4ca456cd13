"""A run as one row of a history, and a run held against the last green one."""

from __future__ import annotations

from datetime import datetime

from pydantic import Field, model_validator

from onepolicy.records.strict import Strict
from onepolicy.records.verdict import Status

Made = dict[str, dict[str, dict[str, str]]]
"""area -> side (empty: of the whole run) -> name -> value, empty if nobody said it"""


class PastRun(Strict):
    """One row of a history: a run, or an attempt of which no run is left."""

    time: datetime | None = None
    """when it began, in UTC; None if nothing says it"""
    run: str = ""
    """its folder; empty if none is kept"""
    pair: str = ""
    """kind, suite and engines; one pair has one newest row, which decides. Empty if the run does not say"""
    engines: str = ""
    """of both sides, with their versions"""
    status: Status
    sentence: str
    """the answer in one sentence; of a damaged run what is wrong with it"""
    kl: float | None = None
    kl_low: float | None = None
    kl_high: float | None = None
    kl_limit: float | None = None
    numbers: dict[str, float] = Field(default_factory=dict)
    """as `Judgement.numbers()` gives them"""
    made: Made = Field(default_factory=dict)
    changed: tuple[str, ...] = ()
    """since the row before of the same pair"""

    @property
    def is_readable(self) -> bool:
        """Whether it says what it was made with; a probe without an answer does not, though its pair is known."""
        return bool(self.made)


class Moved(Strict):
    """A mean per token, then and now, over tokens that both runs have; the difference is paired by prompt."""

    quantity: str
    """as in the metric table"""
    then: float
    now: float
    difference: float
    low: float | None = None
    """99 % interval of the difference over prompts; None with too few of them"""
    high: float | None = None

    @property
    def is_significant(self) -> bool | None:
        """Whether 0 lies outside; None if there is no interval."""
        if self.low is None or self.high is None:
            return None
        return self.low > 0 or self.high < 0


class SideMoved(Strict):
    """One side's logprobs of the same tokens, then and now; nats."""

    side: str
    equal: int
    """tokens with the same float32"""
    mean_abs_change: float
    max_abs_change: float


class CheckMoved(Strict):
    """A check's answer then and now; None and empty where one of the two does not have the check."""

    check: str
    then: float | None = None
    now: float | None = None
    then_status: str = ""
    now_status: str = ""


class Against(Strict):
    """A run held against the last green one: first what changed, then what moved."""

    run: str
    green: str
    green_time: datetime | None = None
    changed: tuple[str, ...]
    """in the order in which a cause is looked for"""
    unsaid: tuple[str, ...] = ()
    """what may have changed, as nobody said it then or now"""
    rollouts: int
    same_ids: int
    """rollouts whose token ids are those of then; only these are paired"""
    tokens: int
    """of these, with a logprob on all four sides"""
    sides: tuple[SideMoved, ...] = ()
    moved: tuple[Moved, ...] = ()
    checks: tuple[CheckMoved, ...] = ()
    sentence: str
    """where to look first, and what moved"""

    @property
    def is_bitwise(self) -> bool:
        """Whether each logprob of the paired tokens is the float32 of then."""
        return bool(self.tokens) and all(side.equal == self.tokens for side in self.sides)


class History(Strict):
    """A folder of runs over time, and the newest of them held against the last green one before it."""

    location: str
    rows: tuple[PastRun, ...]
    """the oldest first; those of no known time after all others"""
    status: Status
    sentence: str
    against: Against | None = None
    why_not_against: str = ""
    """why there is nothing to hold the newest run against"""

    @property
    def exit_status(self) -> int:
        """What the command ends with."""
        return self.status.exit_status

    def __str__(self) -> str:
        return self.sentence


class GateAnswer(Strict):
    """The verdict file of `onepolicy gate`: whether the command may run, and why."""

    format_version: int = 1
    tool_version: str
    time: datetime
    """when this was written, in UTC"""
    config: str
    asked: str = ""
    """SHA-256 of what the configuration asks for, the content of its suite and limits included"""
    allowed: bool
    """whether the command may run: nothing but a pass allows it"""
    status: Status
    exit_status: int
    """0 pass, 1 fail, 2 could not run, 3 unknown"""
    sentence: str
    run: str = ""
    unchanged_since: str = ""
    """the green run that was taken for an answer, as nothing changed since (`--if-changed`)"""
    why_checked: str = ""
    """what changed, or is unknown, so that the check was not skipped"""
    against: Against | None = None
    """the run held against the last green one"""
    numbers: dict[str, float] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _nothing_but_a_pass_allows(self) -> GateAnswer:
        if self.allowed != (self.status is Status.PASS) or self.allowed != (self.exit_status == 0):
            raise ValueError(f"allowed = {self.allowed} does not follow from status {self.status.value!r}")
        return self
