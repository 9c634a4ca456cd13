"""The stretch in which two texts differ."""

from __future__ import annotations

import re
from dataclasses import dataclass

from onepolicy.tokens.sides import common_prefix

_SAME_AGAIN = 12
"""characters that must be the same for a text to have come back"""
_ANY_TAG = re.compile(r"<[^\s<]")
_CUT_TAG = re.compile(r"<[^\s<>]*$")
_TAG = re.compile(r"</?(think|thinking|reasoning|thought)>|\[/?THINK\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """Text `removed` stands in the first, `added` in the second; around them the two agree."""

    at: int
    """character"""
    removed: str
    added: str

    @property
    def is_reasoning(self) -> bool:
        """Whether a tag that opens or closes reasoning is in it."""
        return bool(_TAG.search(self.removed + self.added))

    @property
    def is_whitespace(self) -> bool:
        """Whether nothing else is in it."""
        return not (self.removed + self.added).strip()


def changed(first: str, second: str) -> Changed:
    """What differs between two texts that begin and end alike."""
    at = common_prefix(first, second)
    end = min(common_prefix(first[::-1], second[::-1]), len(first) - at, len(second) - at)
    return _from_tag(first, second, at, len(first) - end, len(second) - end)


def changed_inside(first: str, longer: str) -> Changed:
    """The first change, where the texts may differ again later and the second goes on after the end of the first.

    The texts are short: every place is tried at which the first may come back.
    """
    at = common_prefix(first, longer)
    places = ((start, longer.find(first[start : start + _SAME_AGAIN], at)) for start in range(at, len(first)))
    back = min(((start + found, start, found) for start, found in places if found >= 0), default=None)
    if back is None:
        return _from_tag(first, longer, at, len(first), len(longer))
    return _from_tag(first, longer, at, back[1], back[2])


def _from_tag(first: str, second: str, at: int, end: int, other_end: int) -> Changed:
    """The stretches from `at` to their ends, moved to the left so that no tag is cut.

    "<tool>" after "<think>...</think>" begins like it, so the first difference is inside the tag.
    """
    removed, added = first[at:end], second[at:other_end]
    if removed and added:
        back = len(cut[0]) if (cut := _CUT_TAG.search(first[:at])) else 0
        return Changed(at=at - back, removed=first[at - back : end], added=second[at - back : other_end])
    back = _turn(removed or added, first[:at])
    return Changed(at=at - back, removed=_turned(removed, back), added=_turned(added, back))


def _turn(text: str, before: str) -> int:
    """How far to the left a removed text can be moved, as what stands before it ends like it: to where a tag begins."""
    possible = [back for back in range(len(text)) if before.endswith(text[len(text) - back :])]
    for tag in (_TAG, _ANY_TAG):
        found = next((back for back in possible if tag.match(_turned(text, back))), None)
        if found is not None:
            return found
    return 0


def _turned(text: str, back: int) -> str:
    return text[-back:] + text[:-back] if back and text else text
