"""What a difference between two protocols does to a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Certainty = Literal["exact", "bounded", "not known"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Consequence:
    """One figure on the recorded completions.

    exact: counted, or computed from stored statistics, over `of`. bounded: the recorded columns leave a range from
    `low` to `high`. not known: the run keeps nothing that would say; `sentence` says what to record.
    """

    field: str
    certainty: Certainty
    quantity: str
    """such as share_cut, share_removed, mean_log_kept_mass, mean_shift"""
    low: float | None = None
    high: float | None = None
    unit: str = ""
    of: int = 0
    """completions, or tokens, that the figure is over"""
    recorded: int = 0
    """completions, or tokens, that the run has"""
    sentence: str

    @property
    def value(self) -> float | None:
        """The figure if it is exact."""
        return self.low if self.certainty == "exact" else None


def counted(field: str, quantity: str, *, count: int, of: int, recorded: int, what: str) -> Consequence:
    """A share of completions, exact over those that say. what: "of the recorded completions are ..."."""
    if not recorded:
        return unknown(field, quantity, f"The run has no completion: nothing is recorded to say what share {what}.")
    if not of:
        return unknown(field, quantity, f"The run does not say what share {what}.")
    left = "" if of == recorded else f" ({of} of {recorded} completions say)"
    return Consequence(
        field=field,
        certainty="exact",
        quantity=quantity,
        low=count / of,
        high=count / of,
        unit="share of completions",
        of=of,
        recorded=recorded,
        sentence=f"{count / of:.1%} {what}{left}: exact.",
    )


def unknown(field: str, quantity: str, sentence: str) -> Consequence:
    """A figure that nothing in the run gives."""
    return Consequence(field=field, certainty="not known", quantity=quantity, sentence=sentence)
