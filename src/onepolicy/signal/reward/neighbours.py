"""Does the score depend on what else is in the batch, and in which order?"""

from __future__ import annotations

import numpy as np

from onepolicy.records.tokens import Float64
from onepolicy.records.verdict import Verdict
from onepolicy.signal.reward.found import failed, not_checked, passed
from onepolicy.signal.reward.subject import Subject

CHECK = "neighbours"


def neighbours(subject: Subject) -> Verdict:
    """Fails if a score in a batch is not the score alone."""
    together = _together(subject, list(range(len(subject.scores))))
    backwards = _together(subject, list(range(len(subject.scores)))[::-1])
    moved = float(np.max(subject.shares(together, subject.scores)))
    turned = float(np.max(subject.shares(backwards, together)))
    if np.isnan(moved):
        return not_checked(CHECK, "all pairs have one score for both answers; see `response_swap`.")
    numbers = {"quantity": "max_score_shift", "value": max(moved, turned), "limit": subject.limit, "unit": "spreads"}
    found = f"by {moved:.2g} spreads against alone, and by {turned:.2g} when the order is turned round"
    if max(moved, turned) <= subject.limit:
        return passed(CHECK, f"a batch of {len(together)} moves scores {found}.", **numbers)
    message = (
        f"a batch of {len(together)} moves scores {found} (limit {subject.limit}). Compare `padding` and `precision`: "
        "a shift that grows with the padding is positions or the mask, small jitter is 16 bits. Until then score one "
        "text at a time."
    )
    return failed(CHECK, message, **numbers)


def _together(subject: Subject, order: list[int]) -> Float64:
    """[2 P] scores from one batch in an order, put back."""
    answers = [subject.answers[at] for at in order]
    if subject.open is None:
        scores = subject.rewards(answers)
    else:
        texts = subject.open.encode(answers, limit=subject.open.info.max_length)
        scores = subject.read(subject.open.score_together(texts, side=subject.open.facts.padding_side))
    found = np.empty(len(order))
    found[order] = scores
    return found
