"""Each metric's numbers on both sides, its test, and what could have been seen."""

from __future__ import annotations

from onepolicy.behaviour.limits import BehaviourLimits
from onepolicy.behaviour.metrics import Kind
from onepolicy.behaviour.permutation import Tested
from onepolicy.behaviour.result import BehaviourMetric
from onepolicy.behaviour.table import BehaviourTable

POWER_QUANTILE = 0.8416
"""of the standard normal at 80 %"""


def rows_of(table: BehaviourTable, tested: Tested, limits: BehaviourLimits) -> list[BehaviourMetric]:
    """One row for each metric, in the order of the table."""
    kinds: list[Kind] = [*(metric.kind for metric in table.metrics)]
    kinds += ["similarity", "content"] if table.prompts_alike else []
    units = [*(metric.unit for metric in table.metrics), "ROUGE-L", "ROUGE-L"]
    values = _values(table)
    return [
        BehaviourMetric(
            name=name,
            unit=units[k],
            a=values[k][0],
            b=values[k][1],
            difference=_as_shown(kinds[k], float(tested.difference[k]), table.share_of_b),
            p=float(tested.p[k]),
            threshold=limits.of(kinds[k]),
            visible=max((tested.critical + POWER_QUANTILE) * float(tested.spread[k]), _unseen(kinds[k], table.prompts)),
        )
        for k, name in enumerate(tested.names)
    ]


def _unseen(kind: Kind, prompts: int) -> float:
    """A rate that a side may have and show nowhere in a fifth of comparisons: a rate that is never seen has no spread.

    Prompts count and not samples, as samples of one prompt may do it all or not at all.
    """
    return 1 - 0.2 ** (1 / prompts) if kind == "rate" else 0.0


def _values(table: BehaviourTable) -> list[tuple[float, float]]:
    found = [(float(a), float(b)) for a, b in zip(*table.means(), strict=True)]
    if table.prompts_alike:
        alike = table.similarities()
        found += [(alike.within_a, alike.within_b), ((alike.within_a + alike.within_b) / 2, alike.across)]
    return found


def _as_shown(kind: Kind, difference: float, share_of_b: float) -> float:
    """A length's difference was in units of the mean of both sides: as the share by which B's is longer than A's.

    The mean is (1 - w) A + w B, with w the share of completions that are B's, so that (B - A) / A is d / (1 - w d).
    """
    return difference / (1 - share_of_b * difference) if kind == "length" else difference
