"""Token id -> the bytes it stands for, read from the vocabulary and not from a decoder that joins and strips."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from onepolicy.records.tokens import IntArray

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_WORD_START = "▁"  # U+2581, a space in the vocabularies of SentencePiece


class Pieces:
    """The vocabulary of a tokenizer as bytes: byte-level BPE, SentencePiece with byte fallback, or plain text."""

    knows_all = True
    """whether a token without bytes is not in the vocabulary, and not merely one that a server does not spell"""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.knows_all = not hasattr(tokenizer, "bytes_of")
        decoder = tokenizer.decoder
        kind = bytes(decoder.__getstate__()) if decoder is not None else b""
        self._byte_level = b"ByteLevel" in kind
        self._byte_fallback = b"ByteFallback" in kind
        self._word_start = b"Metaspace" in kind or _WORD_START.encode() in kind or b"\\u2581" in kind
        self.tokenizer = tokenizer
        self._known: dict[int, bytes | None] = {}
        self._added = tokenizer.get_added_tokens_decoder()

    def __len__(self) -> int:
        """One more than the largest id."""
        return max(self.tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    def is_added(self, token_id: int) -> bool:
        """Whether it was added to the vocabulary, so that its text is matched as a whole."""
        return token_id in self._added

    def is_special(self, token_id: int) -> bool:
        """Whether the tokenizer calls it special: an end, a role, padding."""
        return token_id in self._added and bool(self._added[token_id].special)

    def bytes_of(self, token_id: int) -> bytes | None:
        """What the token stands for; None if the vocabulary has no such id."""
        if token_id not in self._known:
            self._known[token_id] = self._read(token_id)
        return self._known[token_id]

    def text_of(self, token_id: int) -> str:
        """The token's text; bytes that form no character as \\x.., an unknown id as its number."""
        content = self.bytes_of(token_id)
        return f"<{token_id}>" if content is None else content.decode("utf-8", errors="backslashreplace")

    def texts_of(self, token_ids: IntArray) -> tuple[str, ...]:
        """[T] -> [T] texts."""
        return tuple(self.text_of(int(i)) for i in token_ids)

    def joined(self, token_ids: IntArray) -> str:
        """The text of the tokens together; bytes of half a character at either end are left out."""
        return b"".join(self.bytes_of(int(i)) or b"" for i in token_ids).decode("utf-8", errors="ignore")

    def _read(self, token_id: int) -> bytes | None:
        if not self.knows_all:
            return cast("bytes | None", cast("Any", self.tokenizer).bytes_of(token_id))
        if token_id in self._added:
            return str(self._added[token_id].content).encode()
        token = self.tokenizer.id_to_token(token_id) if 0 <= token_id < 2**31 else None
        return None if token is None else self._from_vocabulary(token)

    def _from_vocabulary(self, token: str) -> bytes:
        if self._byte_level:
            alphabet = byte_alphabet()
            return b"".join(bytes([alphabet[c]]) if c in alphabet else c.encode() for c in token)
        if self._byte_fallback and (byte := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(byte[1], 16)])
        return (token.replace(_WORD_START, " ") if self._word_start else token).encode()


@cache
def byte_alphabet() -> dict[str, int]:
    """Character -> byte, as byte-level vocabularies write bytes: those that print as themselves, others from U+0100.

    Source: `bytes_to_unicode` in openai/gpt-2:src/encoder.py.
    """
    printing = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printing]
    alphabet = {chr(byte): byte for byte in printing}
    return {**alphabet, **{chr(256 + i): byte for i, byte in enumerate(others)}}
