"""Does any completion end by itself?"""

from __future__ import annotations

import numpy as np

from onepolicy.records.verdict import Verdict
from onepolicy.sampling.audit.asked import Asked
from onepolicy.sampling.audit.call import Call
from onepolicy.sampling.audit.found import passed, unknown

CHECK = "ends_at_all"
MANY = 12
"""cut completions from which on it says something that none ended"""


class EndsAtAll:
    """Unknown if many completions were cut at the limit and no end token was ever produced."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._calls = self._cut = self._ended = self._longest = 0

    def add(self, call: Call) -> None:
        """Take in one call."""
        ends = self._asked.all_ends
        self._calls += 1
        self._cut += self._asked.is_cut(call)
        self._ended += bool(np.isin(call.completion, list(ends)).any()) if ends else call.says_stop
        self._longest = max(self._longest, len(call.completion))

    def verdicts(self) -> list[Verdict]:
        """One."""
        if self._asked.protocol.ignore_eos:
            return [unknown(CHECK, "not checked: the protocol ignores end tokens.")]
        if self._ended:
            return [passed(CHECK, f"{self._ended} of {self._calls} completions have an end token.")]
        if self._cut < MANY:
            return [unknown(CHECK, f"not checked: {self._cut} completions were cut; {MANY} would say something.")]
        message = (
            f"no end token in {self._calls} completions, and {self._cut} were cut (the longest has {self._longest} "
            "tokens): whether the policy ends its answers cannot be seen. The limit is too short, or the end token "
            "of the template is not the one that the engine waits for, or it was never trained. Sample with a longer "
            "limit, and look at what the template puts after an answer."
        )
        return [unknown(CHECK, message, required=True)]
