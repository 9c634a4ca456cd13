"""Two sides that should have the same tokens, laid side by side at their first difference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from onepolicy.tokens.boundaries import boundaries_of
from onepolicy.tokens.pieces import Pieces

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SHOWN = 8
"""tokens of either spelling that are kept"""
WINDOW = 32_768
"""tokens on either side of the difference that are looked at; of a text without a tokenizer, characters"""
ENOUGH = 8
"""tokens or characters that must agree beyond the difference, if not all do; fewer may agree by chance"""
_CONTEXT, _SHOWN_CHARACTERS = 12, 40


class Reader:
    """A tokenizer with what explaining needs of it, made once. Nothing is added around a text, and nothing left out."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = _unlimited(tokenizer)
        self.pieces = Pieces(self.tokenizer)
        self.boundaries = boundaries_of(self.tokenizer)

    @property
    def vocabulary(self) -> int:
        """How many ids there are, holes included."""
        return max(self.tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    def encode(self, text: str) -> list[int]:
        """Ids of a text."""
        return self.encode_all([text])[0]

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of many texts, on all cores."""
        fast = getattr(self.tokenizer, "encode_batch_fast", self.tokenizer.encode_batch)
        encoded = fast([_in_utf8(text) for text in texts], add_special_tokens=False)
        return [one.ids for one in encoded]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, as the tokenizer's own decoder joins them."""
        return self.decode_all([list(ids)])[0]

    def decode_all(self, ids: Sequence[list[int]]) -> list[str]:
        """Texts of many sequences, on all cores. An id that no vocabulary can have is spelled as a number."""
        try:
            return list(self.tokenizer.decode_batch(ids, skip_special_tokens=False))
        except OverflowError:
            return [self.content(row).decode("utf-8", errors="replace") for row in ids]

    def content(self, ids: Sequence[int]) -> bytes:
        """The bytes of ids one after the other; an id that the vocabulary lacks as its number."""
        pieces = list(map(self.pieces.bytes_of, ids))
        if None in pieces:
            pieces = [f"<{i}>".encode() if piece is None else piece for i, piece in zip(ids, pieces, strict=True)]
        return b"".join(piece for piece in pieces if piece is not None)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Side:
    """What one side had: ids or a text. A text becomes ids under the side's tokenizer."""

    name: str
    """as messages call it: sampled, encoded"""
    ids: Sequence[int] | None = None
    text: str | None = None
    """read if there are no ids"""
    reader: Reader | None = None
    """None if the side has no tokenizer of its own; then the other side's is taken"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One token of a spelling; of a text without any tokenizer, a stretch of it."""

    token_id: int | None
    content: bytes

    @property
    def text(self) -> str:
        """Bytes that form no character as \\x.."""
        return self.content.decode("utf-8", errors="backslashreplace")


class Origin(Enum):
    """Where a cause lies, which says whether the text or only its ids are others."""

    TOKENIZER = "the tokenizer"
    """the text was given back, and was decoded or encoded otherwise"""
    SPECIALS = "special tokens"
    """those that begin, end or mark; the text between them was given back"""
    TEXT = "the text"
    """it was written anew, cut, or moved"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first place at which two sides differ, and why."""

    cause: str
    origin: Origin
    seen: str
    """the evidence for the cause, in words"""
    advice: str
    """what to do, in one sentence"""
    position: int
    """of the first differing token in the full sequence; without any tokenizer, of the first differing character"""
    first: tuple[Piece, ...]
    """spelling of the first side from there, at most `SHOWN` tokens"""
    second: tuple[Piece, ...]
    shifted: float
    """share of the first side's tokens that do not stand at the same place on the other side"""


class Compared:
    """Both sides, aligned at their first difference. What costs something is computed when it is asked for."""

    def __init__(self, first: Side, second: Side, *, start: int = 0, cap: int | None = None) -> None:
        self.sides = (first, second)
        self.names = (first.name, second.name)
        self.start, self.cap = start, cap
        self.readers = (first.reader or second.reader, second.reader or first.reader)
        self.ids = (_ids(first, self.readers[0]), _ids(second, self.readers[1]))
        self.at = _same_until(self.ids, self.readers)
        """the first differing token"""

    @property
    def same(self) -> bool:
        """Whether there is no difference."""
        return self.at == len(self.ids[0]) == len(self.ids[1])

    @cached_property
    def window(self) -> tuple[list[int], list[int]]:
        """The ids around the difference."""
        low, high = max(self.at - WINDOW, 0), self.at + WINDOW
        return self.ids[0][low:high], self.ids[1][low:high]

    @cached_property
    def contents(self) -> tuple[bytes, bytes]:
        """The bytes of `window`."""
        return self.content(0, self.window[0]), self.content(1, self.window[1])

    @cached_property
    def texts(self) -> tuple[str, str]:
        """The text of `window`, with U+FFFD for bytes that form no character."""
        a, b = self.contents
        return a.decode("utf-8", errors="replace"), b.decode("utf-8", errors="replace")

    @cached_property
    def character(self) -> int:
        """The first differing character of `texts`."""
        return common_prefix(*self.texts)

    @cached_property
    def region(self) -> tuple[list[int], list[int]] | None:
        """The tokens from the difference to where both sides end a token together; None if their bytes differ there."""
        taken = [0, 0]
        ahead = [b"", b""]  # what one side has read and the other has not; one of the two is empty
        while not (taken[0] and taken[1]) or ahead[0] or ahead[1]:
            side = int(bool(ahead[0]) or (not ahead[1] and taken[0] > taken[1]))
            here = self.ids[side][self.at + taken[side] : self.at + taken[side] + 1]
            if not here or taken[side] == WINDOW:
                return None
            taken[side] += 1
            ahead[side] += self.content(side, here)
            shorter = min(len(ahead[0]), len(ahead[1]))
            if ahead[0][:shorter] != ahead[1][:shorter]:
                return None
            ahead = [ahead[0][shorter:], ahead[1][shorter:]]
        a, b = (self.ids[side][self.at : self.at + taken[side]] for side in (0, 1))
        return a, b

    def explained_by(self, rule: Callable[[str], str]) -> bool:
        """Whether the two texts, which differ, agree under a rule: wholly, or well beyond the difference."""
        a, b = self.texts
        return self.agree(rule(a), rule(b), before=rule(a[: self.character]))

    def agree(self, a: str, b: str, *, before: str) -> bool:
        """Whether two changed texts agree wholly, or well beyond `before`, which is their changed common start."""
        if self.texts[0] == self.texts[1]:
            return False
        return a == b or common_prefix(a, b) >= len(before) + ENOUGH

    def content(self, side: int, ids: Sequence[int]) -> bytes:
        """The bytes of ids on a side."""
        reader = self.readers[side]
        if reader is None:
            return "".join(map(chr, ids)).encode("utf-8", errors="replace")
        return reader.content(ids)

    def spelled(self, side: int, token_id: int) -> str:
        """The text of one id on a side."""
        return self.content(side, [token_id]).decode("utf-8", errors="backslashreplace")

    def is_special(self, side: int, token_id: int) -> bool:
        """Whether a side's tokenizer calls the id special."""
        reader = self.readers[side]
        return reader is not None and reader.pieces.is_special(token_id)

    def is_added(self, side: int, token_id: int) -> bool:
        """Whether a side's tokenizer matches the id's text as a whole."""
        reader = self.readers[side]
        return reader is not None and reader.pieces.is_added(token_id)

    def around(self, side: int) -> str:
        """A side's text at the difference."""
        low = max(self.character - _CONTEXT, 0)
        return self.texts[side][low : low + _SHOWN_CHARACTERS]

    def difference(self, cause: str, seen: str, advice: str, *, origin: Origin) -> Difference:
        """The answer, for a cause that was seen."""
        if self.cap is not None and len(self.ids[1]) > self.cap >= len(self.ids[0]):
            seen = f"{seen}; {len(self.ids[1])} tokens are more than the {self.cap} that a sample can have"
        return Difference(
            cause=cause,
            origin=origin,
            seen=seen,
            advice=advice,
            position=self.start + self.at,
            first=self._spelling(0),
            second=self._spelling(1),
            shifted=self._shifted(),
        )

    def _spelling(self, side: int) -> tuple[Piece, ...]:
        if self.readers[side] is None:
            text = self.texts[side][self.character : self.character + _SHOWN_CHARACTERS]
            return (Piece(token_id=None, content=text.encode()),) if text else ()
        shown = self.ids[side][self.at : self.at + SHOWN]
        return tuple(Piece(token_id=i, content=self.content(side, [i])) for i in shown)

    def _shifted(self) -> float:
        a, b = (np.asarray(ids[self.at :]) for ids in self.ids)
        both = min(len(a), len(b))
        moved = len(a) - int(np.count_nonzero(a[:both] == b[:both]))
        return moved / len(self.ids[0]) if self.ids[0] else 0.0


def common_prefix(a: Sequence[object], b: Sequence[object]) -> int:
    """How many entries two sequences share at their beginning."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low


def _same_until(ids: tuple[list[int], list[int]], readers: tuple[Reader | None, Reader | None]) -> int:
    """The first place where the ids differ, or are read as different bytes by two tokenizers."""
    a, b = readers
    at = common_prefix(*ids)
    if a is None or b is None or a is b:
        return at
    other = {i for i in set(ids[0][:at]) if _read_otherwise(a.pieces, b.pieces, i)}
    return next((n for n, i in enumerate(ids[0][:at]) if i in other), at) if other else at


def _read_otherwise(a: Pieces, b: Pieces, token_id: int) -> bool:
    """Whether two read an id as different bytes, as far as both are known."""
    first, second = a.bytes_of(token_id), b.bytes_of(token_id)
    unknown = (first is None and not a.knows_all) or (second is None and not b.knows_all)
    return first != second and not unknown


def _ids(side: Side, reader: Reader | None) -> list[int]:
    """The side's ids; the numbers of its characters where there is no tokenizer at all."""
    if side.ids is not None:
        return side.ids if isinstance(side.ids, list) else [int(i) for i in side.ids]
    text = side.text or ""
    return [ord(character) for character in text] if reader is None else reader.encode(text)


def _in_utf8(text: str) -> str:
    """The text with a question mark for each lone surrogate, which no tokenizer takes."""
    return text if text.isascii() else text.encode("utf-8", errors="replace").decode()


def _unlimited(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer, or a copy of it, without truncation and padding, which a file or an earlier call may have set."""
    if tokenizer.truncation is None and tokenizer.padding is None:
        return tokenizer
    copy = type(tokenizer).from_str(tokenizer.to_str())
    copy.no_truncation()
    copy.no_padding()
    return copy
