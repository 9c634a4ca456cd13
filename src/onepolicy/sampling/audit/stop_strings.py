"""Is there a stop string in a completion that went on?"""

from __future__ import annotations

from collections import Counter

from onepolicy.records.verdict import Verdict
from onepolicy.sampling.audit.asked import Asked
from onepolicy.sampling.audit.call import Call
from onepolicy.sampling.audit.found import Found, passed, unknown

CHECK = "stop_strings"


class StopStrings:
    """Fails if a completion goes on after a stop string. It may end with the token that the string ends in."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._looked = 0
        self._inside = 0
        self._stops: Counter[str] = Counter()
        self._found = Found()

    def add(self, call: Call) -> None:
        """Take in one call."""
        if not self._asked.stops or (self._asked.content is None and call.text is None):
            return
        self._looked += 1
        place = self._asked.stop_in(call)
        if place is None or not place.behind:
            return
        self._inside += place.inside
        self._stops[place.stop] += 1
        unit = "characters" if self._asked.content is None else "tokens"
        self._found.add(call, f"{place.behind} {unit} after {place.stop!r}")

    def verdicts(self) -> list[Verdict]:
        """One."""
        if not self._asked.stops:
            return [unknown(CHECK, "not checked: no stop string is named (--stop).")]
        if not self._looked:
            return [
                unknown(CHECK, "the run has neither a tokenizer nor texts to look for stop strings in.", required=True)
            ]
        if not self._found.count:
            return [passed(CHECK, f"no completion of {self._looked} goes on after a stop string.")]
        stops = ", ".join(f"{stop!r} ({count})" for stop, count in self._stops.most_common(3))
        inside = (
            f" In {self._inside} of them the string lies inside larger tokens, so ids were compared, not text."
            if self._inside
            else ""
        )
        message = (
            f"{self._found.count} of {self._looked} completions go on after a stop string: {stops}; the first is in "
            f"rollout {self._found.first}.{inside} Let the engine match text, and give it the same strings as serving."
        )
        return [self._found.failed(CHECK, message, quantity="calls_beyond_a_stop_string")]
