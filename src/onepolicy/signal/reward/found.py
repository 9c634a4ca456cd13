"""The verdicts of the checks on a reward model, in their few forms."""

from __future__ import annotations

from typing import Any

from onepolicy.records.verdict import Status, Verdict


def passed(check: str, message: str, **numbers: Any) -> Verdict:
    """Nothing is wrong. numbers: further fields of the verdict."""
    return Verdict(check=check, status=Status.PASS, message=message, **numbers)


def failed(check: str, message: str, **numbers: Any) -> Verdict:
    """Something is."""
    return Verdict(check=check, status=Status.FAIL, message=message, **numbers)


def not_checked(check: str, why: str) -> Verdict:
    """It could not be looked at. Informs, and is named beside a pass."""
    return undecided(check, f"not checked: {why}")


def undecided(check: str, message: str, **numbers: Any) -> Verdict:
    """What was measured decides nothing. Likewise."""
    return Verdict(check=check, status=Status.UNKNOWN, required=False, message=message, **numbers)
