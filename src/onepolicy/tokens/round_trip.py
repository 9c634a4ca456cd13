"""ids -> text, as the sampling side decodes it -> ids, as the scoring side encodes it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np

from onepolicy.records.rollout import Rollout
from onepolicy.records.tokens import IntArray

if TYPE_CHECKING:
    from tokenizers import Tokenizer

REPLACEMENT = "\ufffd"
Cause = Literal["another valid segmentation", "bytes that form no character", "the text changes"]
_BATCH = 256
_KEPT = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTripBreak:
    """A completion whose ids do not come back."""

    rollout_id: str
    position: int
    """of the first differing id, in the full sequence"""
    cause: Cause
    sampled: tuple[str, ...]
    """spelling of the ids that were sampled, from that position"""
    encoded: tuple[str, ...]
    """spelling of the ids that the scoring side's tokenizer writes instead"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextBreak:
    """A completion that the two sides read as different texts."""

    rollout_id: str
    sampling_text: str
    scoring_text: str
    """both from just before the first difference"""


@dataclass(slots=True, kw_only=True)
class TokenMeasurement:
    """What was found in the rollouts that were looked at."""

    rollouts: int = 0
    """in the run"""
    checked: int = 0
    """of which have a text and a tokenizer to check it with, and are in the sample"""
    why_unchecked: str = ""
    causes: dict[str, int] = field(default_factory=dict)
    """cause -> rollouts that do not come back"""
    breaks: list[RoundTripBreak] = field(default_factory=list)
    text_breaks: list[TextBreak] = field(default_factory=list)
    text_broken: int = 0


def measure_round_trip(rollouts: Iterable[Rollout], tokenizer: Tokenizer, measured: TokenMeasurement) -> None:
    """Send every rollout that has a text through the scoring side's tokenizer and note what does not come back.

    Truncation and padding, which a tokenizer file may carry, are switched off in `tokenizer`.
    """
    tokenizer.no_truncation()
    tokenizer.no_padding()
    with_text = (r for r in rollouts if r.text is not None and r.compared.any())
    for batch in batches(with_text, _BATCH):
        starts = [int(np.flatnonzero(r.compared)[0]) for r in batch]
        completions = [r.token_ids[start:] for r, start in zip(batch, starts, strict=True)]
        decoded = tokenizer.decode_batch([c.tolist() for c in completions], skip_special_tokens=False)
        encoded = tokenizer.encode_batch([r.text or "" for r in batch], add_special_tokens=False)
        for rollout, start, ids, text, again in zip(batch, starts, completions, decoded, encoded, strict=True):
            measured.checked += 1
            _one(rollout, start, ids, text, again.ids, tokenizer, measured)


def batches(items: Iterable[Rollout], size: int) -> Iterator[list[Rollout]]:
    """Lists of at most `size` items."""
    batch: list[Rollout] = []
    for item in items:
        batch.append(item)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def _one(  # noqa: PLR0913, PLR0917 - one rollout, seen from both sides
    rollout: Rollout,
    start: int,
    ids: IntArray,
    scoring_text: str,
    encoded: list[int],
    tokenizer: Tokenizer,
    measured: TokenMeasurement,
) -> None:
    sampling_text = rollout.text or ""
    sampling_read, scoring_read = _readable(sampling_text), _readable(scoring_text)
    same_text = sampling_read == scoring_read
    if not same_text:
        measured.text_broken += 1
        if len(measured.text_breaks) < _KEPT:
            measured.text_breaks.append(_text_break(rollout.rollout_id, sampling_read, scoring_read))
    if ids.tolist() == encoded:
        return
    cause: Cause = (
        "the text changes"
        if not same_text
        else "bytes that form no character"
        if REPLACEMENT in scoring_text
        else "another valid segmentation"
    )
    measured.causes[cause] = measured.causes.get(cause, 0) + 1
    if len(measured.breaks) < _KEPT:
        first = _first_difference(ids.tolist(), encoded)
        measured.breaks.append(
            RoundTripBreak(
                rollout_id=rollout.rollout_id,
                position=start + first,
                cause=cause,
                sampled=_spell(tokenizer, ids.tolist()[first : first + 4]),
                encoded=_spell(tokenizer, encoded[first : first + 4]),
            )
        )


def _readable(text: str) -> str:
    """The text without what decoders do differently: marks for bytes that form no character, and the first space.

    SentencePiece-style decoders drop a leading space from what they take for the start of a text.
    """
    return text.replace(REPLACEMENT, "").removeprefix(" ")


def _text_break(rollout_id: str, sampling: str, scoring: str) -> TextBreak:
    first = max(_first_difference(sampling, scoring) - 8, 0)
    return TextBreak(
        rollout_id=rollout_id,
        sampling_text=sampling[first : first + 40],
        scoring_text=scoring[first : first + 40],
    )


def _first_difference(a: str | list[int], b: str | list[int]) -> int:
    shorter = min(len(a), len(b))
    return next((i for i in range(shorter) if a[i] != b[i]), shorter)


def _spell(tokenizer: Tokenizer, ids: list[int]) -> tuple[str, ...]:
    return tuple(tokenizer.decode([i], skip_special_tokens=False) for i in ids)
