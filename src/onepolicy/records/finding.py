"""What a diagnosis says: which cause was tried how, what it explained, and what to do about it."""

from __future__ import annotations

from enum import Enum

from pydantic import Field

from onepolicy.records.strict import Strict

NO_EXCESS = "there is no excess over the noise"
"""why a cause was not tested where nothing is to be explained"""


class Outcome(Enum):
    """How the trial of a cause ended."""

    CAUSE = "cause"
    """applied as a correction it removes the difference on tokens that it was not fitted on"""
    PARTLY = "partly"
    """it removes a part; something else is left"""
    ONE_OF = "one of"
    """it explains the difference as well as another one does"""
    RULED_OUT = "ruled out"
    UNTESTED = "untested"
    """the data cannot tell, and what could was not run"""


class Finding(Strict):
    """One cause, tried on a run. Numbers are per token over prompts that took no part in fitting."""

    cause: str
    """its name in `onepolicy.diagnosis.causes`"""
    outcome: Outcome
    label: str = ""
    """the cause with its parameter, as a person says it: temperature 0.80 on the rollout side"""
    value: float | None = None
    """the parameter, fitted on all tokens"""
    value_error: float | None = None
    stability: float | None = None
    """standard deviation of the parameter over the folds"""
    tokens: int = 0
    gain: float | None = None
    """held-out log-likelihood per token that the correction gains over none, in nats; penalties are taken off"""
    gain_error: float | None = None
    """its standard error over prompt groups"""
    explained: float | None = None
    """share of the clipped excess over the noise that the correction removes"""
    residual: float | None = None
    """clipped mean |d| that is left, in multiples of the noise"""
    mean_abs_d_before: float | None = None
    """of these tokens as they are, cut at 1 nat each; nats"""
    mean_abs_d: float | None = None
    """after the correction, likewise"""
    impossible: float = 0.0
    """share of tokens that could not have been sampled under it"""
    experiment: str = ""
    """what was done to try it; empty if nothing could be"""
    seen: str = ""
    """what of it shows in the data alone"""
    remedy: str = ""
    """which field, flag or file of which framework to change"""
    command: str = ""
    """what to run next, where it was not tested or not told apart"""


class Diagnosis(Strict):
    """Why the two sides of a run differ."""

    run: str
    rollout_reading: str
    trainer_reading: str
    sentence: str
    """the answer in one or two sentences"""
    tokens: int
    prompts: int
    mean_abs_d: float
    """clipped at 1 nat, nats"""
    noise: float
    """the same of what these two precisions do to each other, or of the floor that was given"""
    noise_source: str
    excess: float
    """mean_abs_d - noise"""
    excess_error: float | None
    """over prompts; None for a single one"""
    differs: bool
    """whether there is more than noise, so that there is something to explain"""
    findings: tuple[Finding, ...] = ()
    """structural ones first, then by gain"""
    notes: tuple[str, ...] = Field(default=())
    """what could not be looked at, and why"""

    @property
    def causes(self) -> tuple[Finding, ...]:
        """Those that explain something."""
        return tuple(one for one in self.findings if one.outcome in (Outcome.CAUSE, Outcome.PARTLY, Outcome.ONE_OF))
