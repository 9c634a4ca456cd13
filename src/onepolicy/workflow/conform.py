"""A framework's own functions, or a module's, on planted batches beside the references."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
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
    with _printing_to_stderr():
        try:
            from onepolicy.signal.conformance.run import run  # noqa: PLC0415 - loads torch, which help does not need
        except ModuleNotFoundError as error:
            raise MissingExtraError(package="torch", extra="transformers", needed_for="onepolicy conform") from error
        return run(_subject(target, role))


@contextmanager
def _printing_to_stderr() -> Iterator[None]:
    """What Python prints, and what is written to descriptor 1, as child processes do."""
    kept, real = os.dup(1), sys.__stdout__
    if real is not None:
        real.flush()
    try:
        with redirect_stdout(sys.stderr):
            os.dup2(2, 1)
            yield
    finally:
        if real is not None:
            real.flush()
        os.dup2(kept, 1)
        os.close(kept)


def _subject(target: str, role: str | None) -> Subject:
    from onepolicy.integrations.callable import conform as of_module  # noqa: PLC0415 - torch
    from onepolicy.signal.conformance import ours  # noqa: PLC0415

    if target in CONFORMS or target == OURS:
        if role is not None:
            raise UsageError(f"--as {role} is for MODULE:FUNCTION; {target} says itself what its functions are.")
        found: Subject = ours.subject() if target == OURS else conforming_subject(target)
        return found
    if target.lower() in (*CONFORMS, OURS):
        raise UsageError(f"{target}: did you mean {target.lower()}? A module of your own is given as {target}.py.")
    return of_module.subject(target, role=role)
