"""Bytes that decoding does not give back as they were."""

from __future__ import annotations

import re
from collections.abc import Iterator

from onepolicy.tokens.sides import Compared, common_prefix

_REPLACEMENT = "\ufffd"


def added_token_decoded(c: Compared) -> str | None:
    """A token that was added to the vocabulary decodes to something else than its own text."""
    for side in (0, 1):
        reader, here = c.readers[side], c.ids[side][c.at : c.at + 1]
        if reader is None or not here or not reader.pieces.is_added(here[0]):
            continue
        content, decoded = c.spelled(side, here[0]), reader.decode(here)
        if decoded.strip() != content.strip():
            return f"the added token {content!r} (id {here[0]}) is decoded as {decoded!r}"
    return None


_BYTE_CODE = re.compile(r"(?:<0x[0-9A-Fa-f]{2}>)+")


def byte_codes(c: Compared) -> str | None:
    """One side has the name of a byte token, <0x0A>, where the other has the byte."""
    if not any(b"<0x" in content for content in c.contents) or not c.explained_by(_bytes_named):
        return None
    side = int(len(_BYTE_CODE.findall(c.texts[1])) > len(_BYTE_CODE.findall(c.texts[0])))
    code = _BYTE_CODE.search(c.texts[side], max(c.character - 5, 0))
    return f"the {c.names[side]} text spells bytes as {code[0][:24] if code else '<0x..>'}"


def _bytes_named(text: str) -> str:
    def spell(found: re.Match[str]) -> str:
        return bytes.fromhex(found[0].replace("<0x", "").replace(">", "")).decode("utf-8", errors="replace")

    return _BYTE_CODE.sub(spell, text)


def partial_utf8(c: Compared) -> str | None:
    """At the difference stand bytes that form no character, which no text can carry, or marks that replaced them."""
    if c.region is not None:
        return None
    split = common_prefix(*c.contents)
    for side in (0, 1):
        for start, end in _no_characters(c.contents[side], around=split):
            return f"the {c.names[side]} bytes {c.contents[side][start:end].hex(' ')} form no character"
    marks = [text[c.character : c.character + 1] == _REPLACEMENT for text in c.texts]
    if marks[0] == marks[1]:
        return None
    side = int(marks[1])
    return f"the {c.names[side]} text has the mark U+FFFD where the {c.names[1 - side]} text has a character"


def _no_characters(content: bytes, *, around: int) -> Iterator[tuple[int, int]]:
    """Places of bytes that form no character and touch the byte `around`."""
    at = max(around - 3, 0)
    while at > 0 and at > around - 6 and content[at : at + 1] and content[at] & 0xC0 == 0x80:
        at -= 1  # to the start of a character
    while at < min(len(content), around + 4):
        try:
            content[at : around + 8].decode()
        except UnicodeDecodeError as error:
            start, end = at + error.start, at + error.end
            cut_by_us = end == around + 8 < len(content)
            if start <= around <= end and not cut_by_us:
                yield start, end
            at = end
        else:
            return
