"""Whether two lists of completions are the same draws, as far as an engine repeats itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

Completions = Sequence[Sequence[int]]
"""ids of the completions of some prompts, in order"""
BY_CHANCE = 1e-4
"""that tokens which were drawn alike are said to differ"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Of the same prompts, completed twice."""

    compared: int = 0
    """tokens that were drawn after the same ids on both sides: up to the first that differs of each completion"""
    differed: int = 0
    """completions in which one differs"""

    def __add__(self, other: Agreement) -> Agreement:
        return Agreement(compared=self.compared + other.compared, differed=self.differed + other.differed)

    @property
    def rate(self) -> float:
        """Share of the tokens that differ; 1 of nothing."""
        return self.differed / self.compared if self.compared else 1.0

    def __str__(self) -> str:
        return f"{self.differed} of {self.compared} tokens"


NOTHING = Agreement()
"""before anything was compared"""


def agreement(one: Completions, other: Completions) -> Agreement:
    """How far two lists of completions of the same prompts agree. A completion that ends earlier differs there."""
    found = NOTHING
    for a, b in zip(one, other, strict=True):
        found += _of_two(a, b)
    return found


def _of_two(a: Sequence[int], b: Sequence[int]) -> Agreement:
    same = next((at for at, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    differs = same < max(len(a), len(b))
    return Agreement(compared=same + differs, differed=int(differs))


def chance(seen: Agreement, *, floor: Agreement) -> float:
    """The chance that so many tokens or more differ, if they differ as often as in `floor`.

    Fisher's exact test, one sided: the hypergeometric tail with the differing tokens of both sides taken together.
    """
    total, bad = seen.compared + floor.compared, seen.differed + floor.differed
    most = min(bad, seen.compared)
    ways = math.comb(total, bad)
    tail = sum(
        math.comb(seen.compared, k) * math.comb(floor.compared, bad - k)
        for k in range(seen.differed, most + 1)
        if bad - k <= floor.compared
    )
    return tail / ways


def differs(seen: Agreement, *, floor: Agreement) -> bool:
    """Whether two requests draw otherwise, beyond what one request repeated does."""
    return seen.rate > floor.rate and chance(seen, floor=floor) < BY_CHANCE
