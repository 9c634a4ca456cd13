"""A text as a sequence of characters, in which tokens that were added to a vocabulary stay whole."""

from __future__ import annotations

import re
from collections.abc import Sequence

from onepolicy.tokens.boundaries import Boundaries
from onepolicy.tokens.pieces import Pieces
from onepolicy.tokens.sides import Reader

_FIRST = 0x110000
"""one more than the last character"""


class Characters(Reader):
    """Reads texts and not ids, so that two of them are compared as they stand, before any normaliser.

    An id is the number of a character, or `_FIRST` and the id of an added token.
    """

    def __init__(self, reader: Reader) -> None:
        self.tokenizer = reader.tokenizer
        self.pieces = _CharacterPieces(reader)
        given = reader.boundaries
        self.boundaries = Boundaries(
            bos=frozenset(i + _FIRST for i in given.bos), eos=frozenset(i + _FIRST for i in given.eos)
        )
        self._reader = reader
        known = {str(token.content): i for i, token in reader.tokenizer.get_added_tokens_decoder().items()}
        self._whole = {text: i for text, i in known.items() if text}
        alternatives = sorted(map(re.escape, self._whole), key=len, reverse=True)
        self._pattern = re.compile(f"({'|'.join(alternatives)})") if alternatives else None

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """Numbers of the characters, and of the added tokens that are spelled out."""
        return [self._encode(text) for text in texts]

    def decode_all(self, ids: Sequence[list[int]]) -> list[str]:
        """The texts again; added tokens as the tokenizer's decoder spells them."""
        return ["".join(map(self._character, row)) for row in ids]

    def parts(self, text: str) -> list[tuple[str, bool]]:
        """The text cut at its special tokens; for each part, whether it is one."""
        parts = self._pattern.split(text) if self._pattern else [text]
        return [(part, self._is_special(part)) for part in parts if part]

    def _is_special(self, part: str) -> bool:
        return part in self._whole and self.pieces.is_special(_FIRST + self._whole[part])

    def _character(self, token_id: int) -> str:
        return self._reader.decode([token_id - _FIRST]) if token_id >= _FIRST else chr(token_id)

    def _encode(self, text: str) -> list[int]:
        parts = self._pattern.split(text) if self._pattern else [text]
        ids: list[int] = []
        for part in parts:
            ids.extend([_FIRST + self._whole[part]] if part in self._whole else map(ord, part))
        return ids


class _CharacterPieces(Pieces):
    """What the numbers of `Characters` stand for."""

    def __init__(self, reader: Reader) -> None:
        self._pieces = reader.pieces  # all that is asked of it is overridden here

    def bytes_of(self, token_id: int) -> bytes | None:
        """The character in UTF-8, or the text of the added token."""
        if token_id >= _FIRST:
            return self._pieces.bytes_of(token_id - _FIRST)
        return chr(token_id).encode("utf-8", errors="replace")

    def is_added(self, token_id: int) -> bool:
        """Whether it is no character."""
        return token_id >= _FIRST

    def is_special(self, token_id: int) -> bool:
        """Whether it is an added token that the tokenizer calls special."""
        return token_id >= _FIRST and self._pieces.is_special(token_id - _FIRST)
