"""Does the score depend on how the answer ends?"""

from __future__ import annotations

import numpy as np

from onepolicy.records.verdict import Evidence, Verdict
from onepolicy.signal.reward.found import failed, not_checked, passed
from onepolicy.signal.reward.scorer import OpenScorer, TokenIds
from onepolicy.signal.reward.subject import Subject, alone

CHECK = "reads_end"
_CUTS = (1, 2, 4, 8, 16, 32)
"""tokens that are taken off the end"""
_SHOWN = 5


def reads_end(subject: Subject) -> Verdict:
    """Fails if the last tokens, or the last word, can be taken away without moving the score.

    A model that reads the state of one token gives a prefix that ends there the same score as the whole. Cutting is
    used and not replacing: another token in place of a padding id moves the place that is read.
    """
    if subject.is_constant:
        return not_checked(CHECK, "all scores are one; see `response_swap`.")
    return _by_words(subject) if subject.open is None else _by_tokens(subject, subject.open)


def _by_tokens(subject: Subject, scorer: OpenScorer) -> Verdict:
    texts = scorer.encode(subject.answers[::2], limit=scorer.info.max_length)
    unread = [_unread(subject, scorer, one) for one in texts]
    most = max(unread)
    behind = [count for count in unread if count]
    numbers = {"quantity": "unread_tokens", "value": most, "limit": 0, "unit": "tokens"}
    if not behind or (subject.is_coarse and len(behind) < len(unread)):
        return passed(CHECK, "every score changes when the last token is taken away.", **numbers)
    first = unread.index(most)
    tail = texts[first].ids[len(texts[first].ids) - most :]
    pads = " Its end token is also the padding id." if _is_padding(subject, tail[-1:]) else ""
    message = (
        f"{len(behind)} of {len(unread)} scores stay when the last {most} token(s) are taken away "
        f"({scorer.text(tail)!r} of {subject.pairs[first].id!r}): a cut answer and a whole one get one score, and a "
        f"server that reads the last token gives another.{pads} Pad with an id of its own, and take the end from the "
        "attention mask; a model that was trained so must be served so too: see `served`."
    )
    return failed(CHECK, message, evidence=_places(subject, unread), **numbers)


def _unread(subject: Subject, scorer: OpenScorer, text: TokenIds) -> int:
    """Tokens at the end that change nothing, as far as it was tried."""
    cuts = [count for count in _CUTS if count < len(text.ids)]
    whole = subject.read(scorer.score_ids([text]))
    unread = 0
    for count in cuts:
        without = subject.read(scorer.score_ids([text.without_last(count)]))
        if not subject.equal(without, whole)[0]:
            break
        unread = count
    return unread


def _is_padding(subject: Subject, tail: np.ndarray) -> bool:
    return subject.open is not None and tail.tolist() == [subject.open.facts.pad_id]


def _places(subject: Subject, unread: list[int]) -> tuple[Evidence, ...]:
    named = zip(subject.pairs, unread, strict=True)
    found = [
        Evidence(rollout_id=pair.id, note=f"the last {count} tokens are not read") for pair, count in named if count
    ]
    return tuple(found[:_SHOWN])


def _by_words(subject: Subject) -> Verdict:
    """Without tokens: the last word, or the last third where words are not set apart."""
    kept = [pair for pair in subject.pairs if len(pair.chosen.strip()) > 3]
    if not kept:
        return not_checked(CHECK, "the answers are too short to be cut.")
    whole = subject.scores[::2][[len(pair.chosen.strip()) > 3 for pair in subject.pairs]]
    cut = subject.read(alone(subject.scorer, [pair.answered(_without_end(pair.chosen)) for pair in kept]))
    equal = subject.equal(cut, whole)
    numbers = {"quantity": "unread_ends", "value": int(equal.sum()), "limit": 0, "unit": "answers"}
    if not equal.any() or (subject.is_coarse and not equal.all()):
        return passed(CHECK, "scores change when the end of the answer is taken away.", **numbers)
    message = (
        f"{int(equal.sum())} of {len(kept)} scores stay when the end of the answer is taken away; the first is "
        f"{kept[int(equal.argmax())].id!r}. The end is not read, or was cut off before: find the last token from the "
        "attention mask, and cut texts that are too long on the left."
    )
    return failed(CHECK, message, **numbers)


def _without_end(answer: str) -> str:
    text = answer.strip()
    words = text.rsplit(maxsplit=1)
    return words[0] if len(words) == 2 and len(words[1]) * 3 < len(text) else text[: len(text) * 2 // 3]
