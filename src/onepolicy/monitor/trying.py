"""What goes wrong in the monitor must not end the training that it watches."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self


class Trying:
    """A block that the training survives: any error in it is handed over, and the block is left.

    What ends a process on purpose (`SystemExit`, a signal) goes through.
    """

    def __init__(self, what: str, failed: Callable[[str, str], None]) -> None:
        self._what, self._failed = what, failed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        self._failed(self._what, f"{type(error).__name__}: {error}")
        return True
