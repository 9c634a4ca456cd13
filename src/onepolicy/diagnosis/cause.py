"""What a cause is: a file in `causes/`, and one line in `causes/__init__.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from onepolicy.diagnosis.likelihood import Family
from onepolicy.diagnosis.noise import Noise
from onepolicy.diagnosis.tokens import Tokens
from onepolicy.engines.spec import EngineSpec
from onepolicy.records.protocol import Meaning, SamplingProtocol
from onepolicy.records.reading import ReadingInfo
from onepolicy.records.verdict import Verdict

SideName = Literal["rollout", "trainer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What is known of a run beside its tokens."""

    rollout: ReadingInfo
    trainer: ReadingInfo
    protocol: SamplingProtocol
    noise: Noise
    verdicts: tuple[Verdict, ...] = ()
    """of the judgement on this pair"""
    bos: int | None = None
    """id of the token that begins a text, where the tokenizer has one"""
    eos: int | None = None
    vocabulary: int | None = None
    """ids that the tokenizer has, holes included; a head may have more rows"""
    weights: Mapping[str, EngineSpec] = field(default_factory=dict)
    """other weights of the trainer that a person named, `step 0` -> its spec; older ones first"""
    is_sampled: bool = True
    """whether the rollout side sampled the tokens, so that they are draws from its policy"""

    def verdict(self, check: str) -> Verdict | None:
        """The answer of a check on this pair, if it was asked."""
        return next((one for one in self.verdicts if one.check == check), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """A change of the context before it is scored; the completion stays."""

    prepend: tuple[int, ...] = ()
    drop: int = 0
    """ids at the front that are taken away first"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """A reading that would settle a cause: it takes the place of one side's logprobs.

    Executed where the engine is at hand, else printed as a command.
    """

    cause: str
    label: str
    """what is done, as a person says it: the trainer without position ids"""
    engine: EngineSpec
    side: SideName = "trainer"
    """whose logprobs it replaces"""
    value: float = 0.0
    """the parameter, of a cause that tries several"""
    meaning: Meaning | None = None
    """None: as the side's own reading"""
    edit: Edit = Edit()
    settles: bool = True
    """whether the cause is ruled out where this gains nothing; not one of the values that it may have"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """A cause that the data prove by themselves: a structural one, such as a value that is no logprob."""

    label: str
    seen: str
    """what was found, how often, and where first"""
    is_decisive: bool = True
    """whether numbers say nothing while it holds"""


def no_proof(tokens: Tokens, situation: Situation) -> Proof | None:
    """Of a cause that is tried, not read off."""
    return None


def no_families(tokens: Tokens, situation: Situation) -> Iterable[Family]:
    """Of a cause that the data alone cannot tell."""
    return ()


def no_experiments(tokens: Tokens, situation: Situation) -> Iterable[Experiment]:
    """Of a cause that the data alone can tell."""
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One way in which two engines come to differ."""

    name: str
    """as it is listed: lower case, a few words"""
    about: str
    """one sentence: what went wrong, and on which side"""
    remedy: Callable[[Situation, float], str]
    """what to change, for the value that was found (0 where there is none): field, flag or file of which framework"""
    proof: Callable[[Tokens, Situation], Proof | None] = no_proof
    families: Callable[[Tokens, Situation], Iterable[Family]] = no_families
    """from the data alone: only what the recorded columns make exact enough"""
    experiments: Callable[[Tokens, Situation], Iterable[Experiment]] = no_experiments
    is_broad: bool = False
    """whether undoing it undoes several others as well, so that it gives way to one of them that explains as much"""
    needs: str = ""
    """what it takes to try it, said where neither data nor experiments can"""
