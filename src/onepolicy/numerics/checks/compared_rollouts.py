"""Rollouts of a recording must have tokens to compare."""

from __future__ import annotations

from onepolicy.judgement.limits import Limits
from onepolicy.numerics.measurement import Measurement
from onepolicy.records.verdict import Status, Verdict


def compared_rollouts(measured: Measurement, limits: Limits) -> list[Verdict]:
    """Unknown if more rollouts than the coverage allows have no token to compare; else nothing.

    What is masked away differs from what is left: a framework masks what went wrong.
    """
    empty, allowed = measured.empty_rollouts, (1 - limits.coverage) * measured.rollouts
    if empty <= allowed + 1e-9:
        return []
    return [
        Verdict(
            check="compared_rollouts",
            status=Status.UNKNOWN,
            quantity="empty_rollouts",
            value=empty,
            limit=allowed,
            unit="rollouts",
            message=(
                f"{empty} of {measured.rollouts} rollouts have no sampled token and no loss mask, so nothing of them "
                "is compared. What is masked away may differ from what is left; if that is meant, allow it with "
                "--coverage."
            ),
        )
    ]
