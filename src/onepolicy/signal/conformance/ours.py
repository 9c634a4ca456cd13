"""Our own references as a subject: each must agree with itself, and the tests hold it against enumeration."""

from __future__ import annotations

from onepolicy.signal.conformance.roles import ROLES
from onepolicy.signal.conformance.subject import Function, Subject


def subject() -> Subject:
    """Every role, filled."""
    return Subject(
        name="onepolicy",
        functions=[Function(role=name, label=name, call=role.reference) for name, role in ROLES.items()],
    )
