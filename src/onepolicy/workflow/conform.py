"""A framework's own functions, or a module's, on planted batches beside the references."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from typing import TYPE_CHECKING

from onepolicy.errors import MissingExtraError, UsageError
from onepolicy.integrations import CONFORMS, conforming_subject

if TYPE_CHECKING:
    from onepolicy.records.conform import Conformance
    from onepolicy.signal.conformance.subject import Subject

OURS = "onepolicy"


def conform(target: str, *, role: str | None = None) -> Conformance:
    """What each function does in each case of its role. What is printed meanwhile goes to stderr.

    target: trl, verl, onepolicy (the references themselves), MODULE (functions that are named as roles), or
    MODULE:FUNCTION. role: what that function is, if its name does not say so.
    Raises: UsageError for what names nothing; EngineError if a package is absent or a module cannot be imported.
    """
    with redirect_stdout(sys.stderr):
        try:
            from onepolicy.signal.conformance.run import run  # noqa: PLC0415 - loads torch, which help does not need
        except ModuleNotFoundError as error:
            raise MissingExtraError(package="torch", extra="transformers", needed_for="onepolicy conform") from error
        return run(_subject(target, role))


def _subject(target: str, role: str | None) -> Subject:
    from onepolicy.integrations.callable import conform as of_module  # noqa: PLC0415 - torch
    from onepolicy.signal.conformance import ours  # noqa: PLC0415

    if target in CONFORMS or target == OURS:
        if role is not None:
            raise UsageError(f"--as {role} is for MODULE:FUNCTION; {target} says itself what its functions are.")
        found: Subject = ours.subject() if target == OURS else conforming_subject(target)
        return found
    return of_module.subject(target, role=role)
