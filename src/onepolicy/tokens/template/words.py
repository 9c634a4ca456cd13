"""How a property of a template is put."""

from __future__ import annotations

from onepolicy.records.verdict import Status, Verdict

_LONGEST = 60


def quoted(text: str) -> str:
    """The text in quotes, control characters as escapes; the middle of a long one is left out."""
    shown = text if len(text) <= _LONGEST else f"{text[:36]} ... {text[-18:]}"
    return repr(shown)


def note(check: str, message: str) -> Verdict:
    """Something to know that decides nothing."""
    return Verdict(check=check, status=Status.UNKNOWN, required=False, message=message)


def passed(check: str, message: str, *, required: bool = True) -> Verdict:
    """As it should be."""
    return Verdict(check=check, status=Status.PASS, required=required, message=message)
