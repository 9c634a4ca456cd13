"""Making sense of what a server sent, which may be anything."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from onepolicy.errors import AlignmentError, EngineError


@contextmanager
def readable(where: str) -> Iterator[None]:
    """Turn the failure to make sense of an answer into an EngineError: what a server sends may be anything."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, AlignmentError) as error:
        raise EngineError(
            f"{where} answers in a form that cannot be read ({type(error).__name__}: {_one_line(error)}). See what is "
            "behind this URL and whether its version is supported."
        ) from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
