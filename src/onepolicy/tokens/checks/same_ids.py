"""Both readings must have scored the run's own ids."""

from __future__ import annotations

from onepolicy.records.verdict import Status, Verdict
from onepolicy.tokens.round_trip import TokenMeasurement


def same_ids(measured: TokenMeasurement) -> Verdict:
    """Passes with the number of rollouts whose digests agree; other ids are refused before a verdict is made."""
    if not measured.rollouts:
        return Verdict(check="same_ids", status=Status.UNKNOWN, message="the run holds no rollouts. Record some first.")
    return Verdict(
        check="same_ids",
        status=Status.PASS,
        quantity="rollouts",
        value=measured.rollouts,
        unit="rollouts",
        message=f"both engines scored the same ids in all {measured.rollouts} rollouts.",
    )
