"""ids -> text, as the sampling side decodes -> ids, as the scoring side encodes; and text -> ids -> text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from onepolicy.records.rollout import Rollout
from onepolicy.tokens.causes import UNKNOWN, explain
from onepolicy.tokens.characters import Characters
from onepolicy.tokens.sides import Difference, Origin, Reader, Side, common_prefix
from onepolicy.tokens.special_tokens import SpecialTokens

if TYPE_CHECKING:
    from onepolicy.tokens.trajectory import History

REPLACEMENT = "\ufffd"
KEPT = 5
"""breaks of each kind that a measurement keeps; all are counted"""
MOST_IN_A_BATCH, MOST_TOKENS_IN_A_BATCH = 512, 65_536
_HELD = "Read the text from the ids."
_BEFORE, _SHOWN = 8, 40
"""characters of a text in a `TextBreak`: before the difference, and in all"""
HELD_BACK = "end held back"
"""what a server that streams leaves out of its text: the last pieces, as long as the text ends inside a character"""
MOST_HELD_BACK = 8
"""tokens; vLLM holds back those after which the text has ended inside a character ever since, rarely five"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sample:
    """One completion, or a text alone."""

    name: str
    """of the rollout, or of the row"""
    ids: list[int] | None = None
    """None: what the sampling side's tokenizer makes of the text"""
    text: str | None = None
    """as the sampling engine decoded it; None: as the sampling side's tokenizer decodes the ids"""
    start: int = 0
    """position of the first id in the full sequence"""
    cap: int | None = None
    """most tokens that a completion could have, where that is known"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextBreak:
    """A text that is not the one that was expected."""

    rollout_id: str
    difference: Difference
    """positions count characters, an added token as one; where special tokens differ first, of the text without them"""
    expected: str
    found: str
    """both from just before the first difference"""
    by_ids: bool = False
    """whether two tokenizers read one id as two texts; then positions count tokens"""
    changes_meaning: bool = True
    """whether the texts are others, whole as they are, and not only special tokens or an end were left out of one"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTripBreak:
    """A completion whose ids do not come back."""

    rollout_id: str
    difference: Difference
    """first: what was sampled, second: what the scoring side's tokenizer writes instead"""


BreakT = TypeVar("BreakT", RoundTripBreak, TextBreak)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one sample."""

    name: str
    tokens: int
    ids: RoundTripBreak | None
    """ids -> text -> ids"""
    text: TextBreak | None
    """text -> ids -> text, by the scoring side"""
    reading: TextBreak | None
    """the sampling side's text of the ids against the scoring side's"""

    @property
    def is_broken(self) -> bool:
        """Whether anything does not come back."""
        return self.ids is not None or self.text is not None or self.reading is not None


@dataclass(slots=True, kw_only=True)
class TokenMeasurement:
    """What was found in the samples that were looked at. Only the first breaks are kept, all are counted."""

    rollouts: int = 0
    """in the run"""
    checked: int = 0
    """of which have a text and a tokenizer to check it with, and are in the sample"""
    tokens: int = 0
    why_unchecked: str = ""
    causes: dict[str, int] = field(default_factory=dict)
    """cause -> completions whose ids do not come back"""
    shifted: float = 0.0
    """sum over them of the share of tokens that stand elsewhere"""
    breaks: list[RoundTripBreak] = field(default_factory=list)
    text_causes: dict[str, int] = field(default_factory=dict)
    """cause -> completions whose text does not come back"""
    text_back: list[TextBreak] = field(default_factory=list)
    reading_causes: dict[str, int] = field(default_factory=dict)
    """cause -> completions that the two sides read as different texts"""
    text_breaks: list[TextBreak] = field(default_factory=list)
    other_meaning: int = 0
    """completions of which the two sides read not only less but other text"""
    special: SpecialTokens = field(default_factory=SpecialTokens)
    history: History | None = None
    """of the trajectories of several calls; None if there are none"""

    @property
    def text_broken(self) -> int:
        """Completions that the two sides read as different texts."""
        return sum(self.reading_causes.values())

    def add(self, outcome: Outcome) -> None:
        """Count an outcome, and keep it if it is among the first of its kind."""
        self.checked += 1
        self.tokens += outcome.tokens
        if outcome.ids is not None:
            self.shifted += outcome.ids.difference.shifted
            _count(self.causes, self.breaks, outcome.ids)
        if outcome.text is not None:
            _count(self.text_causes, self.text_back, outcome.text)
        if outcome.reading is not None:
            _count(self.reading_causes, self.text_breaks, outcome.reading)
            self._keep_first_of_other_meaning(outcome.reading)

    def _keep_first_of_other_meaning(self, found: TextBreak) -> None:
        """The place of what decides is shown, however many came before that do not."""
        self.other_meaning += found.changes_meaning
        if found.changes_meaning and self.other_meaning == 1:
            self.text_breaks[-1] = found


def sample_of(rollout: Rollout, *, cap: int | None = None) -> Sample:
    """The completion of a rollout: from its first compared token to its end."""
    start = int(np.argmax(rollout.compared)) if rollout.compared.any() else len(rollout.token_ids)
    return Sample(
        name=rollout.rollout_id, ids=rollout.token_ids[start:].tolist(), text=rollout.text, start=start, cap=cap
    )


class RoundTrip:
    """The two tokenizers of a round trip; one and the same `Reader` if both sides share it."""

    def __init__(self, *, sampling: Reader | None, scoring: Reader) -> None:
        self._sampling, self._scoring = sampling, scoring

    def outcomes(self, samples: Iterable[Sample]) -> Iterator[Outcome]:
        """What becomes of each sample, in order. Samples need ids and a text, or a sampling side's tokenizer.

        Batches go through the tokenizers at once, which use all cores for them. An empty sample comes back.
        """
        for batch in _batches(iter(samples)):
            yield from self._batch(batch)

    def _batch(self, batch: list[Sample]) -> Iterator[Outcome]:
        ids = self._ids(batch)
        read = self._scoring.decode_all(ids)
        texts = self._texts(batch, ids, read)
        encoded = self._scoring.encode_all(texts)
        moved = [row for row, (a, b) in enumerate(zip(ids, encoded, strict=True)) if a != b]
        back = dict(zip(moved, self._scoring.decode_all([encoded[row] for row in moved]), strict=True))
        for row, sample in enumerate(batch):
            yield Outcome(
                name=sample.name,
                tokens=len(ids[row]),
                ids=self._ids_break(sample, ids[row], encoded[row]) if row in back else None,
                text=self._text_break(sample.name, texts[row], back.get(row, read[row])),
                reading=self._reading_break(sample, ids[row], texts[row], read[row]),
            )

    def _ids(self, batch: Sequence[Sample]) -> list[list[int]]:
        alone = [row for row, sample in enumerate(batch) if sample.ids is None]
        made = self._own.encode_all([batch[row].text or "" for row in alone]) if alone else []
        of_row = dict(zip(alone, made, strict=True))
        return [of_row[row] if sample.ids is None else sample.ids for row, sample in enumerate(batch)]

    def _texts(self, batch: Sequence[Sample], ids: list[list[int]], read: list[str]) -> list[str]:
        untold = [row for row, sample in enumerate(batch) if sample.text is None]
        if self._sampling is self._scoring:
            decoded = [read[row] for row in untold]
        else:
            decoded = self._own.decode_all([ids[row] for row in untold]) if untold else []
        of_row = dict(zip(untold, decoded, strict=True))
        return [of_row[row] if sample.text is None else sample.text for row, sample in enumerate(batch)]

    @property
    def _own(self) -> Reader:
        """The sampling side's."""
        assert self._sampling is not None, "a sample without ids or text needs the sampling side's tokenizer"
        return self._sampling

    @cached_property
    def _characters(self) -> Characters:
        return Characters(self._scoring)

    def _ids_break(self, sample: Sample, ids: list[int], encoded: list[int]) -> RoundTripBreak:
        sampled = Side(name="sampled", ids=ids, reader=self._sampling)
        again = Side(name="encoded", ids=encoded, reader=self._scoring)
        difference = explain(sampled, again, start=sample.start, cap=sample.cap)
        assert difference is not None, "the ids differ"
        return RoundTripBreak(rollout_id=sample.name, difference=difference)

    def _text_break(self, name: str, text: str, back: str) -> TextBreak | None:
        return self._other_text(name, text, back, names=("first", "returned"))

    def _reading_break(self, sample: Sample, ids: list[int], text: str, read: str) -> TextBreak | None:
        if self._sampling is self._scoring and (sample.ids is None or sample.text is None):
            return None  # one tokenizer, and no engine said what it read
        broken = self._other_text(sample.name, text, read, names=("sampling", "scoring"), ids=ids)
        if broken is None or self._sampling is None or self._sampling is self._scoring:
            return broken
        by_id = explain(
            Side(name="sampling", ids=ids, reader=self._sampling), Side(name="scoring", ids=ids, reader=self._scoring)
        )
        return broken if by_id is None else replace(broken, difference=by_id, by_ids=True, changes_meaning=True)

    def _other_text(
        self, name: str, expected: str, found: str, *, names: tuple[str, str], ids: Sequence[int] = ()
    ) -> TextBreak | None:
        """ids: of which `found` is the text, if the end of it may have been held back."""
        if expected == found or (a := _readable(expected)) == (b := _readable(found)):
            return None
        bare = self._bare(expected), self._bare(found)
        less = self._left_out(expected, found)
        if less and bare[0] == bare[1]:
            return _break_of(name, self._of_texts(a, b, names), (a, b), changes_meaning=False)
        if less and self._held_back(*bare, ids):
            seen = f"the {names[0]} text ends {len(bare[1]) - len(bare[0])} characters before an unfinished character"
            held = replace(self._of_texts(a, b, names), cause=HELD_BACK, origin=Origin.TEXT, seen=seen, advice=_HELD)
            return _break_of(name, held, (a, b), changes_meaning=False)
        difference = self._of_texts(a, b, names)
        if difference.cause == UNKNOWN and REPLACEMENT in expected + found:
            difference = self._of_texts(expected, found, names)
        if difference.origin is Origin.SPECIALS and bare[0] != bare[1]:  # and behind them something else
            difference, (a, b) = self._of_texts(*bare, names), bare
        return _break_of(name, difference, (a, b), changes_meaning=True)

    def _bare(self, text: str) -> str:
        """The readable text without special tokens."""
        return _readable("".join(part for part, special in self._characters.parts(text) if not special))

    def _left_out(self, expected: str, found: str) -> bool:
        """Whether the special tokens of one text are those of the other, some left out."""
        a, b = ([p for p, special in self._characters.parts(text) if special] for text in (expected, found))
        shorter, longer = sorted((a, b), key=len)
        rest = iter(longer)
        return all(token in rest for token in shorter)

    def _held_back(self, expected: str, found: str, ids: Sequence[int]) -> bool:
        """Whether a text, both without special tokens, lacks no more than pieces that a server may hold back.

        Those are the last tokens, from the first one after which the text ends inside a character, and does so ever
        since. All before them it must have.
        """
        if not found.startswith(expected):
            return False
        body = list(ids)
        while body and self._scoring.pieces.is_special(body[-1]):
            body.pop()
        before = 0
        for text in self._scoring.decode_all(
            [body[: len(body) - n] for n in range(min(MOST_HELD_BACK, len(body)) + 1)]
        ):
            if not text.endswith(REPLACEMENT):
                break
            before += 1
        return before > 0 and expected.startswith(self._bare(self._scoring.decode(body[: len(body) - before])))

    def _of_texts(self, a: str, b: str, names: tuple[str, str]) -> Difference:
        first, second = (
            Side(name=name, text=text, reader=self._characters) for name, text in zip(names, (a, b), strict=True)
        )
        difference = explain(first, second)
        assert difference is not None, "the texts differ"
        return difference


def measure_round_trip(
    rollouts: Iterable[Rollout], trip: RoundTrip, measured: TokenMeasurement, *, cap: int | None = None
) -> None:
    """Send every rollout that has a text and a completion through both tokenizers, and count what does not return.

    cap: most tokens of a completion, where that is known.
    """
    samples = (sample_of(r, cap=cap) for r in rollouts if r.text is not None and r.compared.any())
    for outcome in trip.outcomes(samples):
        measured.add(outcome)


def _break_of(name: str, difference: Difference, texts: tuple[str, str], *, changes_meaning: bool) -> TextBreak:
    low = max(common_prefix(*texts) - _BEFORE, 0)
    expected, found = (text[low : low + _SHOWN] for text in texts)
    return TextBreak(
        rollout_id=name, difference=difference, expected=expected, found=found, changes_meaning=changes_meaning
    )


def _count(causes: dict[str, int], kept: list[BreakT], found: BreakT) -> None:
    cause = found.difference.cause
    causes[cause] = causes.get(cause, 0) + 1
    if len(kept) < KEPT:
        kept.append(found)


def _batches(samples: Iterator[Sample]) -> Iterator[list[Sample]]:
    """Lists of samples, neither too many nor too long together."""
    batch: list[Sample] = []
    size = 0
    for sample in samples:
        batch.append(sample)
        size += len(sample.ids) if sample.ids is not None else len(sample.text or "")
        if len(batch) == MOST_IN_A_BATCH or size >= MOST_TOKENS_IN_A_BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _readable(text: str) -> str:
    """The text without what decoders do differently: marks for bytes that form no character, and the first space.

    SentencePiece-style decoders drop a leading space from what they take for the start of a text.
    """
    return text.replace(REPLACEMENT, "").removeprefix(" ")
