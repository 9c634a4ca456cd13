"""How a long step tells how far it is."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Receives what a step does; the command line draws a bar on stderr from it."""

    def start(self, title: str, total: int, unit: str = "rollouts") -> None:
        """A step of so many begins; a unit is rollouts or bytes."""

    def advance(self, count: int) -> None:
        """`count` more are done."""

    def note(self, message: str) -> None:
        """Something that a person should know."""


class Silent:
    """Says nothing; the default of the Python functions."""

    def start(self, title: str, total: int, unit: str = "rollouts") -> None:
        """Nothing is shown."""

    def advance(self, count: int) -> None:
        """Nothing is shown."""

    def note(self, message: str) -> None:
        """Nothing is shown."""
