"""Were all calls sampled under the run's one protocol?"""

from __future__ import annotations

from collections import Counter

from onepolicy.records.verdict import Status, Verdict
from onepolicy.sampling.audit.asked import Asked
from onepolicy.sampling.audit.call import Call
from onepolicy.sampling.audit.found import unknown
from onepolicy.sampling.checks.one_protocol import one_protocol


class OneProtocol:
    """The check of `judge`, counted call by call."""

    def __init__(self, asked: Asked) -> None:
        self._of_files = asked.of_files
        self._of_run = asked.of_run or asked.protocol.hash
        self._calls: Counter[str] = Counter()

    def add(self, call: Call) -> None:
        """Take in one call."""
        if call.protocol_hash:
            self._calls[call.protocol_hash] += 1

    def verdicts(self) -> list[Verdict]:
        """One."""
        found = one_protocol(self._calls, of_run=self._of_run)
        if found.status is Status.PASS and self._of_files:
            return [unknown("one_protocol", "not checked: recorded files do not say how they were sampled.")]
        return [found]
