"""The checks of the audit, in the order in which they are shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from onepolicy.records.verdict import Verdict
from onepolicy.sampling.audit.across_prompts import AcrossPrompts
from onepolicy.sampling.audit.asked import Asked
from onepolicy.sampling.audit.call import Call
from onepolicy.sampling.audit.cut_share import CutShare
from onepolicy.sampling.audit.duplicates import Duplicates
from onepolicy.sampling.audit.end_trained import EndTrained
from onepolicy.sampling.audit.ends_at_all import EndsAtAll
from onepolicy.sampling.audit.finish_reason import FinishReason
from onepolicy.sampling.audit.forced_end import ForcedEnd
from onepolicy.sampling.audit.group_size import GroupSize
from onepolicy.sampling.audit.length_limit import LengthLimit
from onepolicy.sampling.audit.loss_of_cut import LossOfCut
from onepolicy.sampling.audit.one_protocol import OneProtocol
from onepolicy.sampling.audit.prompt_edges import PromptEdges
from onepolicy.sampling.audit.same_prompt import SamePrompt
from onepolicy.sampling.audit.seeds import Seeds
from onepolicy.sampling.audit.stop_strings import StopStrings
from onepolicy.sampling.audit.tokens_after_end import TokensAfterEnd


class Check(Protocol):
    """Takes in one call after the other, and says at the end what it found."""

    def add(self, call: Call) -> None:
        """Take in one call."""

    def verdicts(self) -> list[Verdict]:
        """What was found."""


CHECKS: tuple[Callable[[Asked], Check], ...] = (
    OneProtocol,
    FinishReason,
    ForcedEnd,
    TokensAfterEnd,
    StopStrings,
    EndsAtAll,
    EndTrained,
    LengthLimit,
    CutShare,
    LossOfCut,
    SamePrompt,
    PromptEdges,
    GroupSize,
    Duplicates,
    AcrossPrompts,
    Seeds,
)


def audited(calls: Iterable[Call], asked: Asked) -> list[Verdict]:
    """The verdicts of all checks on some calls; each call is looked at once and let go."""
    checks = [make(asked) for make in CHECKS]
    for call in calls:
        for check in checks:
            check.add(call)
    return [verdict for check in checks for verdict in check.verdicts()]
