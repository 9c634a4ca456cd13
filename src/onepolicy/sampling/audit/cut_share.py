"""How many completions were cut?"""

from __future__ import annotations

from onepolicy.records.verdict import Status, Verdict
from onepolicy.sampling.audit.asked import Asked
from onepolicy.sampling.audit.call import Call
from onepolicy.sampling.audit.found import passed, shares

CHECK = "cut_share"
MOST = 0.5
"""share above which rewards and lengths say more of the limit than of the policy"""


class CutShare:
    """Says which share of the completions the limit cut. Informs; a cut length is a lower bound of the true one."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._calls = self._cut = self._tokens = 0

    def add(self, call: Call) -> None:
        """Take in one call."""
        self._calls += 1
        self._cut += self._asked.is_cut(call)
        self._tokens += len(call.completion)

    def verdicts(self) -> list[Verdict]:
        """One."""
        if not self._cut:
            return [passed(CHECK, f"no completion of {self._calls} was cut.", required=False)]
        share = self._cut / self._calls
        limit = f" at {self._asked.longest} tokens" if self._asked.longest is not None else ""
        message = (
            f"{shares(self._cut, self._calls, 'completions')} were cut{limit}: their true length is not known, and "
            f"the mean of {self._tokens / self._calls:.4g} tokens is a lower bound."
        )
        if share > MOST:
            message += " Rewards judge half answers; raise the limit before anything else is blamed."
        return [
            Verdict(
                check=CHECK,
                status=Status.FAIL if share > MOST else Status.PASS,
                required=False,
                quantity=CHECK,
                value=share,
                limit=MOST,
                message=message,
            )
        ]
