"""Both readings must have scored the run's own ids."""

from __future__ import annotations

from onepolicy.records.verdict import Status, Verdict
from onepolicy.tokens.round_trip import TokenMeasurement


def same_ids(measured: TokenMeasurement) -> Verdict:
    """Passes with the number of rollouts: a row with other ids was refused before a verdict is made.

    A rollout without a row is no other; coverage counts it.
    """
    if not measured.rollouts:
        return Verdict(check="same_ids", status=Status.UNKNOWN, message="the run holds no rollouts. Record some first.")
    return Verdict(
        check="same_ids",
        status=Status.PASS,
        quantity="rollouts",
        value=measured.rollouts,
        unit="rollouts",
        message=f"no reading scored other ids than those of the run's {measured.rollouts} rollouts.",
    )
