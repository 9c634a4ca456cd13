"""The same text, other tokens: what a tokenizer makes of it."""

from __future__ import annotations

from onepolicy.tokens.sides import ENOUGH, Compared

_MOST_PLACES = 64
"""places at which ids are rebuilt one by one, before it is believed"""


def unknown_id(c: Compared) -> str | None:
    """A side has an id that its own vocabulary does not have."""
    for side in (0, 1):
        reader, here = c.readers[side], c.ids[side][c.at : c.at + 1]
        if reader is not None and here and reader.pieces.bytes_of(here[0]) is None:
            return f"the {c.names[side]} ids have {here[0]}, which no token of that side's vocabulary has"
    return None


def special_text(c: Compared) -> str | None:
    """The same text is one token that was added to the vocabulary on one side, and ordinary tokens on the other."""
    if c.region is None:
        return None
    for side in (0, 1):
        for i in c.region[side]:
            if not c.is_added(side, i) or i in c.region[1 - side]:
                continue
            if c.content(1 - side, [i]) == c.content(side, [i]):
                return f"{c.spelled(side, i)} is a token in the {c.names[side]} ids and plain text in the other"
    return None


def space_after_special(c: Compared) -> str | None:
    """A space after a special token is split off on one side and stays with the word on the other."""
    if c.region is None or not c.at or not c.is_added(0, before := c.ids[0][c.at - 1]):
        return None
    text = c.content(0, c.region[0])
    if not text.startswith(b" "):
        return None
    return f"the space after {c.spelled(0, before)} is split in two ways"


def other_tokenizer(c: Compared) -> str | None:
    """The two tokenizers spell the ids at the difference in two ways, or split this very text in two ways."""
    a, b = c.readers
    if a is None or b is None or a is b:
        return None
    here = [*c.ids[0][c.at : c.at + ENOUGH], *c.ids[1][c.at : c.at + ENOUGH]]
    for i in here:
        left, right = a.pieces.bytes_of(i), b.pieces.bytes_of(i)
        if left != right:
            return f"id {i} is {_quoted(left)} on the {c.names[0]} side and {_quoted(right)} on the {c.names[1]} side"
    if c.region is not None and a.encode(a.decode(c.window[0])) == c.window[0]:
        return "both have these tokens, and each splits this text in its own way"
    return None


def another_segmentation(c: Compared) -> str | None:
    """The same bytes, split into other tokens of the vocabulary."""
    if c.region is None:
        return None
    text = c.content(0, c.region[0]).decode("utf-8", errors="backslashreplace")
    return f"{text[:40]!r} is {len(c.region[0])} tokens {c.names[0]} and {len(c.region[1])} {c.names[1]}"


def no_token(c: Compared) -> str | None:
    """A character for which a side's vocabulary has no token: it is left out, or becomes the unknown token."""
    for side in (0, 1):
        reader, text = c.readers[side], c.texts[side][c.character : c.character + 1]
        if reader is None or not text:
            continue
        tokens = reader.tokenizer.encode(text, add_special_tokens=False).tokens
        if not tokens:
            return f"the tokenizer has no token for {text!r} and leaves it out"
        unknown = getattr(reader.tokenizer.model, "unk_token", None)
        if unknown in tokens and c.texts[1 - side].startswith(unknown, c.character):
            return f"the tokenizer has no token for {text!r} and writes {unknown}"
    return None


def rebuilt_from_pieces(c: Compared) -> str | None:
    """Each id was made anew from the text of one token: the same length, other ids at isolated places."""
    a, b = c.window
    left, right = c.readers
    if left is None or right is None or len(c.ids[0]) != len(c.ids[1]):
        return None
    places = [i for i in range(len(a)) if a[i] != b[i]]
    for i in places[:_MOST_PLACES]:
        if left.pieces.bytes_of(a[i]) is None:
            return None
        alone = right.encode(left.decode([a[i]])) or [0]
        if alone[0] != b[i]:
            return None
    return f"each of the {len(places)} other ids is the first one that the text of its token alone gets"


def _quoted(content: bytes | None) -> str:
    return "no token" if content is None else repr(content.decode("utf-8", errors="backslashreplace"))
