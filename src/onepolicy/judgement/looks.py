"""How often a run that grows was looked at: each look at other data spends some of the level."""

from __future__ import annotations

from dataclasses import dataclass

from onepolicy.judgement.limits import ALPHA, LOOK_ALPHAS


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The first, second ... time that data about one question are judged. The same data again are the same look."""

    number: int = 1

    @property
    def decides(self) -> bool:
        """Whether any of the level is left for it."""
        return self.number <= len(LOOK_ALPHAS)

    @property
    def next(self) -> Look:
        """The one after it."""
        return Look(number=self.number + 1)

    @property
    def alpha(self) -> float:
        """The level of the bound that lets the run pass; where none is left, that of the last look, to be shown."""
        return LOOK_ALPHAS[min(self.number, len(LOOK_ALPHAS)) - 1]

    @property
    def bounds(self) -> str:
        """The levels of the two bounds, as they are shown."""
        low, high = (f"{100 * (1 - level):.3g} %" for level in (ALPHA, self.alpha))
        return f"{low} bounds" if low == high else f"{low} lower and {high} upper bound, look {self.number}"
