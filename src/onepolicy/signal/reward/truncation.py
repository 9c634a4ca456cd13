"""What is cut when a text is too long? The end must stay."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from onepolicy.engines.http import StatusError
from onepolicy.errors import EngineError
from onepolicy.records.verdict import Verdict
from onepolicy.signal.reward.found import failed, not_checked, passed, undecided
from onepolicy.signal.reward.scorer import OpenScorer
from onepolicy.signal.reward.subject import Subject

CHECK = "truncation_side"
_REFUSALS = (400, 413, 422)
"""statuses of a request that is wrong in itself; not of keys, quotas or a server that is busy"""
_LENGTH = re.compile(r"\blength\b|\btoo long\b|\blonger than\b|\btokens\b", re.IGNORECASE)
"""what a server or a function says that refuses a text for its length"""
_REMEDY = "Set truncation_side='left' in the tokenizer, or leave such texts out."


def truncation_side(subject: Subject) -> Verdict:
    """Fails if the end of a text that is too long is cut off.

    Of a tokenizer it is only what it would do, and informs, unless one of the pairs is too long.
    """
    return _asked(subject) if subject.open is None else _encoded(subject, subject.open)


def _encoded(subject: Subject, scorer: OpenScorer) -> Verdict:
    whole = scorer.encode(subject.answers)
    limit = scorer.info.max_length
    too_long = sum(len(one.ids) > limit for one in whole) if limit else 0
    longest = max(whole, key=lambda one: len(one.ids))
    place = len(longest.ids) // 2
    cut = scorer.encode([subject.answers[whole.index(longest)]], limit=place)[0]
    tail = max(1, len(cut.ids) // 2)  # a tokenizer may put special tokens in front again
    keeps_end = np.array_equal(cut.ids[-tail:], longest.ids[-tail:])
    counted = f"{too_long} of {len(whole)} texts have more than {limit} tokens" if limit else "no limit is known"
    numbers: dict[str, Any] = {"quantity": "texts_too_long", "value": too_long, "unit": "texts"}
    if keeps_end:
        return passed(CHECK, f"the tokenizer cuts on the left, so the end stays; {counted}.", **numbers)
    message = (
        f"the tokenizer cuts texts that are too long on the right, so the answer loses its end; {counted}. {_REMEDY}"
    )
    if too_long:
        return failed(CHECK, message, limit=0, **numbers)
    return undecided(CHECK, message, **numbers)


def _asked(subject: Subject) -> Verdict:
    limit = subject.scorer.info.max_length
    if not limit:
        return not_checked(CHECK, "the longest text that the scorer takes is not known; name it with ?max_length=N.")
    pair = subject.pairs[0]
    front = pair.filler + f" {pair.filler}" * limit  # a sentence is at least one token
    try:
        scores = subject.rewards([pair.answered(f"{front} {end}") for end in (pair.chosen, pair.rejected)])
    except EngineError as error:
        if not _refuses_length(error):
            raise
        return passed(CHECK, f"a text of more than {limit} tokens is refused: {str(error)[:200]}")
    if subject.equal(scores[:1], scores[1:])[0]:
        message = (
            f"two texts of more than {limit} tokens that end differently get one score: the end is cut off. {_REMEDY}"
        )
        return failed(CHECK, message, quantity="score_difference", value=float(abs(scores[0] - scores[1])))
    return passed(CHECK, f"two texts of more than {limit} tokens that end differently get two scores.")


def _refuses_length(error: EngineError) -> bool:
    """Whether a server says that it is the length, or a function with an EngineError that it raises itself."""
    if isinstance(error, StatusError):
        return error.status in _REFUSALS and bool(_LENGTH.search(error.said))
    raised = error.__cause__
    return isinstance(raised, EngineError) and bool(_LENGTH.search(str(raised)))
