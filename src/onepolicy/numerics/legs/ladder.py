"""The rungs of a ladder, and what they come to."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from onepolicy.judgement.decide import decide, sentence
from onepolicy.records.reading import EngineInfo
from onepolicy.records.strict import Strict
from onepolicy.records.verdict import Status, Verdict

Kind = Literal["must hold", "what if"]


class Rung(Strict):
    """One reading held against another one; exact statements about these tokens. d = reading - base, in nats."""

    name: str
    what: str
    """what is different, in a few words"""
    kind: Kind = "must hold"
    """what if: a mistake or another precision, which is measured and decides nothing"""
    base: str = ""
    """name of the reading that it is held against"""
    reading: str = ""
    """its own name in the run; empty if it could not be computed"""
    prompts: int = 0
    tokens: int = 0
    """with a logprob in both"""
    tokens_without: int = 0
    """that lack one in either"""
    mean_d: float | None = None
    mean_abs_d: float | None = None
    max_abs_d: float | None = None
    mean_k3: float | None = None
    bitwise_share: float | None = None
    """share of tokens with the same float32 in both"""
    from_cache: float | None = None
    """share of the tokens before which something came from a cache, of a leg about one"""
    limits: str = ""
    """the preset that it is held against, where it is another than the ladder's"""
    status: Status
    message: str
    """what decided it, in one or two sentences"""
    verdicts: tuple[Verdict, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """The rung as one check of the ladder."""
        says = {
            Status.PASS: f"the leg {self.name!r} holds ({self.what})",
            Status.FAIL: f"the leg {self.name!r} breaks ({self.what})",
            Status.UNKNOWN: f"nothing is known of the leg {self.name!r} ({self.what})",
        }
        return Verdict(
            check=f"leg.{self.name}",
            status=self.status,
            required=self.kind == "must hold",
            quantity="mean_abs_d",
            value=self.mean_abs_d,
            unit="nats",
            message=f"{says[self.status]}: {self.message}",
        )


class NotHere(Strict):
    """A leg that this engine cannot be read under; it has not passed."""

    name: str
    what: str
    why: str
    asked: bool = False
    """whether it was asked for by name: then the answer is unknown"""

    @property
    def verdict(self) -> Verdict:
        """As one check of the ladder."""
        asked = "was asked for and is" if self.asked else "is"
        return Verdict(
            check=f"leg.{self.name}",
            status=Status.UNKNOWN,
            required=self.asked,
            message=f"the leg {self.name!r} {asked} not possible here: {self.why}.",
        )


class Ladder(Strict):
    """An engine against itself, leg by leg, and against others."""

    engine: EngineInfo
    spec: str
    run: str
    plain: str
    """name of the reading that most legs are held against"""
    limits: str
    """preset or file, or what was given"""
    rungs: tuple[Rung, ...] = ()
    """in the order in which they are climbed"""
    not_here: tuple[NotHere, ...] = ()
    status: Status
    sentence: str
    """the answer, with the first rung that breaks"""

    @property
    def verdicts(self) -> list[Verdict]:
        """What decides, one verdict for each rung, and one for all where all hold."""
        return verdicts_of(self.rungs, self.not_here)

    @property
    def breaks(self) -> str:
        """Name of the first rung that breaks of those that must hold; empty if none does."""
        broken = (rung.name for rung in self.rungs if rung.kind == "must hold" and rung.status is Status.FAIL)
        return next(broken, "")

    @model_validator(mode="after")
    def _follows(self) -> Ladder:
        if (self.status, self.sentence) != (decide(self.verdicts), sentence(self.verdicts)):
            raise ValueError("its answer does not follow from its rungs; the file was changed")
        return self


def verdicts_of(rungs: tuple[Rung, ...], not_here: tuple[NotHere, ...]) -> list[Verdict]:
    """One verdict for each leg, in order; where all that must hold does, one more that is the sentence of a pass.

    A ladder is decided by them: the first rung that breaks, or else the first that is not known; unknown too if nothing
    that must hold was read.
    """
    verdicts = [*(rung.verdict for rung in rungs), *(leg.verdict for leg in not_here)]
    if decide(verdicts) is not Status.PASS:
        return verdicts
    legs = [verdict for verdict in verdicts if verdict.required]
    furthest = max(legs, key=lambda verdict: verdict.value or 0.0)
    name = furthest.check.removeprefix("leg.")
    message = f"all {len(legs)} legs hold; the largest mean |d| is {furthest.value or 0.0:.2g} nats ({name})."
    return [*verdicts, Verdict(check="ladder", status=Status.PASS, message=message)]
