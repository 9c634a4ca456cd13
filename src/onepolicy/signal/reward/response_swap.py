"""Does the score change when the last answer is replaced?"""

from __future__ import annotations

from math import comb
from typing import Any

from onepolicy.records.verdict import Evidence, Status, Verdict
from onepolicy.signal.reward.found import failed, passed
from onepolicy.signal.reward.subject import Subject

CHECK = "response_swap"
_CHANCE = 0.025
"""a coin prefers the better answer so seldom with less probability than this: it is no chance. Half of 5 %, as it is
one end of a two-sided interval"""
_SHOWN = 5


def response_swap(subject: Subject) -> Verdict:
    """Fails if two answers to a prompt get one score; of few-valued or rounded scores, if all pairs do.

    Unknown if the worse answers score higher more often, and if all scores are one; the latter decides, the former
    where it is no chance.
    """
    chosen, rejected = subject.scores[::2], subject.scores[1::2]
    equal = subject.equal(chosen, rejected)
    total, tied = len(equal), int(equal.sum())
    limit = total - 1 if subject.is_coarse else 0
    numbers: dict[str, Any] = {"quantity": "tied_pairs", "value": tied, "limit": limit, "unit": "pairs"}
    if subject.is_constant:
        message = (
            f"every answer has the score {chosen[0]:g}: these pairs say nothing of the scorer. Give pairs that it "
            "should tell apart with --pairs."
        )
        return Verdict(check=CHECK, status=Status.UNKNOWN, message=message, **numbers)
    better = int((chosen > rejected)[~equal].sum())
    if tied <= limit:
        ties = f", {tied} have one score (scores take few values)" if tied else ""
        message = f"the better of two answers scores higher in {better} of {total} pairs{ties}."
        return _preference(message, better, total - tied, **numbers)
    names = [pair.id for pair, same in zip(subject.pairs, equal, strict=True) if same]
    message = (
        f"{tied} of {total} pairs have one score for both answers; the first is {names[0]!r}. The last answer is not "
        "read: usually the end of the text is looked for as the first padding id, which is also the end of a turn. "
        "Find it from the attention mask, and pad with an id of its own."
    )
    evidence = tuple(Evidence(rollout_id=name, note="both answers have one score") for name in names[:_SHOWN])
    return failed(CHECK, message, evidence=evidence, **numbers)


def _preference(message: str, better: int, counted: int, **numbers: Any) -> Verdict:
    """A pass, unless the worse answers score higher in more pairs."""
    if 2 * better >= counted:
        return passed(CHECK, message, **numbers)
    chance = sum(comb(counted, count) for count in range(better + 1)) / 2**counted
    message = (
        f"not decided: {message} The worse one does more often. See whether its sign is turned round, or chosen "
        "and rejected stand the other way round in the pairs."
    )
    return Verdict(check=CHECK, status=Status.UNKNOWN, required=chance < _CHANCE, message=message, **numbers)
