"""The text was written anew."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence

from onepolicy.tokens.json_style import json_difference
from onepolicy.tokens.sides import WINDOW, Compared, common_prefix


def json_rewritten(c: Compared) -> str | None:
    """The same JSON value in other characters: order of keys, spacing, escapes."""
    other = json_difference(*c.texts, at=c.character)
    return None if other is None else f"the same JSON value, written with other {other}"


_THINKING = re.compile(
    r"<(think|thinking|reasoning|thought)>.*?</\1>\s*|<\|channel\|>analysis.*?<\|end\|>\s*|\[THINK\].*?\[/THINK\]\s*",
    re.DOTALL,
)


def thinking_removed(c: Compared) -> str | None:
    """One side lacks a block of reasoning, or has an empty one more."""
    if not c.explained_by(lambda text: _THINKING.sub("", text)):
        return None
    blocks = [[found[0] for found in _THINKING.finditer(text)] for text in c.texts]
    side = int(sum(map(len, blocks[1])) > sum(map(len, blocks[0])))
    lost = next((block for block in blocks[side] if block not in blocks[1 - side]), blocks[side][0])
    return f"the {c.names[1 - side]} text lacks the reasoning {_shortened(lost)!r}"


NORMALISATIONS: tuple[tuple[str, Callable[[str], str]], ...] = (
    ("NFC", lambda text: unicodedata.normalize("NFC", text)),
    ("NFKC", lambda text: unicodedata.normalize("NFKC", text)),
    ("a space for U+2581", lambda text: text.replace("\u2581", " ")),
    ("lower case", str.lower),
    ("accents stripped", lambda text: _without_accents(text)),  # noqa: PLW0108 - defined below
    ("accents stripped and lower case", lambda text: _without_accents(text).lower()),
    ("NFKC and case folded", lambda text: unicodedata.normalize("NFKC", text).casefold()),
)
"""what tokenizers do to a text before they split it, the mildest first"""


def normalised(c: Compared) -> str | None:
    """The texts are equal once both are normalised."""
    name = next((name for name, rule in NORMALISATIONS if c.explained_by(rule)), None)
    return None if name is None else f"equal after {name}: {c.around(0)!r} and {c.around(1)!r}"


def _without_accents(text: str) -> str:
    decomposed = unicodedata.normalize("NFD", text)
    return "".join(character for character in decomposed if unicodedata.category(character) != "Mn")


def whitespace_changed(c: Compared) -> str | None:
    """The texts are equal but for whitespace."""
    if not c.explained_by(lambda text: "".join(text.split())):
        return None
    a, b = c.texts
    where = "at an end of the text" if a.strip() == b.strip() else "inside the text"
    longer = int(len(b) > len(a))
    tail = c.texts[longer][c.character :]
    lost = tail[: max(len(tail) - len(tail.lstrip()), 1)]
    return f"the {c.names[1 - longer]} text has other whitespace than {_shortened(lost)!r}, {where}"


def specials_changed(c: Compared) -> str | None:
    """The same text but for special tokens, which one side lacks."""
    kept = [[i for i in ids if not c.is_special(side, i)] for side, ids in enumerate(c.window)]
    a, b = (len(ids) - len(rest) for ids, rest in zip(c.window, kept, strict=True))
    if a == b:
        return None
    before = [i for i in c.window[0][: min(c.at, WINDOW)] if not c.is_special(0, i)]
    left, right, common = (_text(c, side, ids) for side, ids in ((0, kept[0]), (1, kept[1]), (0, before)))
    if not c.agree(left, right, before=common):
        return None
    return f"{a} special tokens {c.names[0]} and {b} {c.names[1]}, and the rest of the text agrees"


def _text(c: Compared, side: int, ids: Sequence[int]) -> str:
    """Without whitespace at the ends, which goes with the markers beside it."""
    return c.content(side, ids).decode("utf-8", errors="replace").strip()


def template_rewritten(c: Compared) -> str | None:
    """A stretch with markers of the template stands on one side only, or is worded otherwise."""
    near = any(c.is_special(side, i) for side in (0, 1) for i in c.ids[side][max(c.at - 4, 0) : c.at + 4])
    if not near:
        return None
    a, b = (text[c.character :] for text in c.texts)
    last = common_prefix(a[::-1], b[::-1])
    a, b = a[: len(a) - last], b[: len(b) - last]
    return f"there the {c.names[0]} text has {_shortened(a)!r}, the {c.names[1]} text {_shortened(b)!r}"


def _shortened(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:50]} ... {text[-24:]}"
