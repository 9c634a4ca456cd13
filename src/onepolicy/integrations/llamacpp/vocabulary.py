"""The bytes behind each id of a GGUF file's vocabulary."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from onepolicy.errors import EngineError, MissingExtraError

NORMAL, BYTE = 1, 6
"""`tokenizer.ggml.token_type` of items that are written in the model's alphabet, and of single bytes; the others
(unknown, control, user defined) are plain text, as the server is asked to spell special tokens out"""

SPACE_OF_SPM = "\u2581"


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """What a GGUF file says about its tokens."""

    kind: str
    """`tokenizer.ggml.model`: gpt2 (byte-level BPE) or llama (SentencePiece); of others the bytes are not known"""
    tokens: tuple[str, ...]
    types: tuple[int, ...]

    def bytes_of(self, token_id: int) -> bytes | None:
        """The bytes that a token adds to the text; None where this is not known."""
        spell = SPELLING.get(self.kind)
        if spell is None or not 0 <= token_id < len(self.tokens):
            return None
        text, kind = self.tokens[token_id], self.types[token_id]
        return spell(text) if kind in (NORMAL, BYTE) else text.encode()


def read_vocabulary(gguf: Path) -> Vocabulary:
    """The vocabulary of a GGUF file, about 2 s for 50,000 items. Raises EngineError or MissingExtraError."""
    try:
        from gguf import GGUFReader  # noqa: PLC0415  (only completions with cut characters need it)
    except ImportError as error:
        raise MissingExtraError(package="gguf", extra="llamacpp", needed_for="reading a GGUF vocabulary") from error
    fields = GGUFReader(gguf).fields
    missing = [name for name in ("model", "tokens", "token_type") if f"tokenizer.ggml.{name}" not in fields]
    if missing:
        raise EngineError(f"{gguf} has no tokenizer.ggml.{missing[0]}. Convert the model to GGUF with its tokenizer.")
    return Vocabulary(
        kind=fields["tokenizer.ggml.model"].contents(),
        tokens=tuple(fields["tokenizer.ggml.tokens"].contents()),
        types=tuple(fields["tokenizer.ggml.token_type"].contents()),
    )


def _byte_level(text: str) -> bytes | None:
    """Of a token in the byte-level alphabet of GPT-2, where each character stands for one byte."""
    alphabet = byte_alphabet()
    return bytes(alphabet[char] for char in text) if all(char in alphabet for char in text) else None


def _sentence_piece(text: str) -> bytes:
    """Of a SentencePiece token: `<0xE4>` is a byte, U+2581 a space."""
    if single := re.fullmatch(r"<0x([0-9A-F]{2})>", text):
        return bytes.fromhex(single[1])
    return text.replace(SPACE_OF_SPM, " ").encode()


SPELLING: dict[str, Callable[[str], bytes | None]] = {"gpt2": _byte_level, "llama": _sentence_piece}
"""kind of vocabulary -> text of a token to its bytes"""


@cache
def byte_alphabet() -> dict[str, int]:
    """The 256 characters by which byte-level BPE writes bytes: printable Latin-1 as itself, the rest from U+0100 on."""
    itself = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in itself]
    return {chr(byte): byte for byte in itself} | {chr(0x100 + n): byte for n, byte in enumerate(others)}
