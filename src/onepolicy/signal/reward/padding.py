"""Does padding move the score?"""

from __future__ import annotations

import math

import numpy as np

from onepolicy.records.verdict import Verdict
from onepolicy.signal.reward.found import failed, not_checked, passed
from onepolicy.signal.reward.scorer import Side, TokenIds
from onepolicy.signal.reward.subject import Subject

CHECK = "padding"
_TEXTS = 4
"""of different prompts; what padding does wrong it does to all"""
_CAUSES = {
    "left": "Positions count the padding: pad on the right, or pass position_ids.",
    "right": "The end is looked for in the wrong place: compare pad_token_id of tokenizer and config.json.",
    "both": "The attention mask is not used: pass it.",
}
"""side on which padding moves the score -> why, and what to do"""
_MOST, _MULTIPLE = 8, 64
"""1 to 8 tokens, and up to a multiple of 64 as kernels like it"""


def padding(subject: Subject) -> Verdict:
    """Fails if padding on the side that the tokenizer pads moves a score; says what the other side does."""
    if subject.open is None:
        return not_checked(CHECK, "the scorer pads by itself; see `neighbours`.")
    scorer = subject.open
    texts = scorer.encode(subject.answers[:: 2 * max(1, len(subject.pairs) // _TEXTS)], limit=scorer.info.max_length)
    sides: tuple[Side, ...] = ("left", "right")
    moved = {side: max(_moved(subject, one, side) for one in texts) for side in sides}
    return _verdict(subject, scorer.facts.padding_side, moved)


def _moved(subject: Subject, text: TokenIds, side: Side) -> float:
    """The farthest that padding of a text moves its score. Unit: spreads."""
    assert subject.open is not None
    room = (subject.open.info.max_length or math.inf) - len(text.ids)
    amounts = [pads for pads in (*range(1, _MOST + 1), -len(text.ids) % _MULTIPLE) if pads <= room]
    found = subject.read(np.stack([subject.open.score_padded(text, side=side, pads=pads) for pads in (0, *amounts)]))
    return float(subject.shares(found[1:], found[:1]).max(initial=0.0))


def _verdict(subject: Subject, used: Side, moved: dict[Side, float]) -> Verdict:
    other: Side = "left" if used == "right" else "right"
    numbers = {"quantity": "max_score_shift", "value": moved[used], "limit": subject.limit, "unit": "spreads"}
    aside = f"on the {other}, where its tokenizer does not pad, by {moved[other]:.2g}"
    if np.isnan(moved[used]):
        return not_checked(CHECK, "all pairs have one score for both answers; see `response_swap`.")
    if moved[used] <= subject.limit:
        return passed(
            CHECK,
            f"padding of 1 to {_MOST} tokens and to a multiple of {_MULTIPLE} on the {used} moves scores by at most "
            f"{moved[used]:.2g} spreads; {aside}{_warning(moved[other], subject.limit, other)}",
            **numbers,
        )
    found = f"padding on the {used} moves scores by up to {moved[used]:.2g} spreads (limit {subject.limit}); {aside}."
    cause = "both" if moved[other] > subject.limit else used
    return failed(CHECK, f"{found} {_CAUSES[cause]}", **numbers)


def _warning(moved: float, limit: float, side: Side) -> str:
    return f": never pad on the {side}." if moved > limit else "."
