"""What `onepolicy bisect` found: which switches, by which starts."""

from __future__ import annotations

from collections.abc import Sequence

from onepolicy.records.strict import Strict
from onepolicy.records.verdict import Status


class Attempt(Strict):
    """One start of the engine, and what the check said of it."""

    status: Status
    sentence: str
    """the check's, or why there is none"""
    seconds: float
    folder: str = ""
    """where its log and its run are, inside the folder of the bisection"""


class Tested(Strict):
    """One choice of switches."""

    switches: tuple[str, ...]
    """those that were set as in the bad configuration; all others as in the good one"""
    attempts: tuple[Attempt, ...]

    @property
    def decided(self) -> tuple[Status, ...]:
        """Outcomes of the attempts that had one."""
        return tuple(attempt.status for attempt in self.attempts if attempt.status is not Status.UNKNOWN)

    @property
    def status(self) -> Status:
        """What all attempts say that had an outcome; unknown if they differ, or none had."""
        said = set(self.decided)
        return said.pop() if len(said) == 1 else Status.UNKNOWN

    @property
    def is_flaky(self) -> bool:
        """Whether one start passed and another of the same switches failed."""
        return len(set(self.decided)) > 1


class Switch(Strict):
    """What differs between the two configurations, as it is written in the command."""

    name: str
    good: str
    bad: str


class Cause(Strict):
    """Switches that make the check fail, none of which can be left out as far as is known."""

    switches: tuple[Switch, ...]
    unsure: tuple[str, ...] = ()
    """those without which the outcome is unknown, so that they may be superfluous"""


class Bisection(Strict):
    """All of it."""

    folder: str
    status: Status
    """pass: found, and confirmed by starts of its own; unknown otherwise"""
    sentence: str
    switches: tuple[Switch, ...]
    causes: tuple[Cause, ...] = ()
    tests: tuple[Tested, ...] = ()
    """in the order in which they were first started"""

    @property
    def exit_status(self) -> int:
        """What the command ends with."""
        return self.status.exit_status

    @property
    def starts(self) -> int:
        """How often the engine was started."""
        return sum(len(test.attempts) for test in self.tests)

    @property
    def flaky(self) -> tuple[Tested, ...]:
        """Tests that came out differently when they were repeated."""
        return tuple(test for test in self.tests if test.is_flaky)

    @property
    def unknown(self) -> tuple[Tested, ...]:
        """Tests that have no outcome and are not flaky."""
        return tuple(test for test in self.tests if test.status is Status.UNKNOWN and not test.is_flaky)

    def __str__(self) -> str:
        return self.sentence


def named(switches: Sequence[str]) -> str:
    """Their names in a sentence."""
    if not switches:
        return "nothing"
    *first, last = switches
    return f"{', '.join(first)} and {last}" if first else last
