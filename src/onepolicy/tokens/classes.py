"""Token id -> class: letters by script, digits, punctuation, whitespace, code symbols, special, partial bytes."""

from __future__ import annotations

import unicodedata
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from onepolicy.tokens.pieces import Pieces

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SCRIPTS = {
    "LATIN": "Latin letters",
    "CJK": "Chinese characters",
    "HIRAGANA": "Japanese kana",
    "KATAKANA": "Japanese kana",
    "HANGUL": "Korean letters",
    "ARABIC": "Arabic letters",
    "CYRILLIC": "Cyrillic letters",
    "GREEK": "Greek letters",
    "HEBREW": "Hebrew letters",
    "DEVANAGARI": "Devanagari letters",
    "THAI": "Thai letters",
}
"""first word of a character's Unicode name -> class"""
CLASSES = (
    "unknown",
    *dict.fromkeys(SCRIPTS.values()),
    "other letters",
    "digits",
    "punctuation",
    "code symbols",
    "other symbols",
    "whitespace",
    "special",
    "partial bytes",
)
_CODE = frozenset("{}[]<>()=+-*/\\|&^%$#@~_`;")


def class_of(content: bytes | None, *, special: bool = False) -> str:
    """The class of a token that stands for these bytes; None is an id that no token has.

    Whitespace around other text does not count, and the first letter decides over everything else.
    """
    if content is None:
        return "unknown"
    if special:
        return "special"
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return "partial bytes"
    return _class_of_text(text)


def classes_of(tokenizer: Tokenizer) -> npt.NDArray[np.uint8]:
    """[V] index into `CLASSES` of each id."""
    pieces = Pieces(tokenizer)
    number = {name: i for i, name in enumerate(CLASSES)}
    found = (number[class_of(pieces.bytes_of(i), special=pieces.is_special(i))] for i in range(len(pieces)))
    return np.fromiter(found, dtype=np.uint8, count=len(pieces))


@lru_cache(maxsize=4)
def classes_in(tokenizer_file: Path) -> npt.NDArray[np.uint8]:
    """The same from a `tokenizer.json`, made once for each; the file's name must change with its content."""
    from tokenizers import Tokenizer  # noqa: PLC0415 - only a run with a tokenizer needs it

    return classes_of(Tokenizer.from_file(str(tokenizer_file)))


def _class_of_text(text: str) -> str:
    visible = "".join(text.split())
    if not visible:
        return "whitespace" if text else "unknown"
    kinds = [unicodedata.category(c) for c in visible]
    for character, kind in zip(visible, kinds, strict=True):
        if kind[0] == "L":
            return _script(character)
    if "N" in {kind[0] for kind in kinds}:
        return "digits"
    if any(c in _CODE for c in visible):
        return "code symbols"
    return "punctuation" if any(kind[0] == "P" for kind in kinds) else "other symbols"


@lru_cache(maxsize=8192)
def _script(character: str) -> str:
    return SCRIPTS.get(unicodedata.name(character, "").split(" ")[0], "other letters")
