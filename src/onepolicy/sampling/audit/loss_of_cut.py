"""Does the loss see completions that were cut, and by what is it divided?"""

from __future__ import annotations

from onepolicy.records.verdict import Status, Verdict
from onepolicy.sampling.audit.asked import Asked
from onepolicy.sampling.audit.call import Call
from onepolicy.sampling.audit.found import Found, passed, shares

CHECK = "loss_of_cut"


class LossOfCut:
    """Says how much of the tokens the mask of cut completions takes out of the loss. Informs."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._cut = self._tokens = self._masked_tokens = 0
        self._masked = Found()

    def add(self, call: Call) -> None:
        """Take in one call."""
        self._tokens += len(call.completion)
        if self._asked.is_cut(call):
            self._cut += 1
            if not call.trained.any():
                self._masked_tokens += len(call.completion)
                self._masked.add(call, "cut, and not in the loss")

    def verdicts(self) -> list[Verdict]:
        """One."""
        if not self._masked.count:
            return [passed(CHECK, f"all {self._cut} cut completions are in the loss mask.", required=False)]
        left = 1 - self._masked_tokens / self._tokens
        some = "" if self._masked.count == self._cut else " The others are in the loss: one of the two is a mistake."
        message = (
            f"{shares(self._masked.count, self._cut, 'cut completions')} are masked out of the loss, "
            f"{self._masked_tokens:,} of {self._tokens:,} tokens. A loss that is still divided by all tokens comes out "
            f"{left:.3g} times as large; divide by the tokens of the mask.{some}"
        )
        return [
            Verdict(
                check=CHECK,
                status=Status.UNKNOWN,
                required=False,
                quantity="share_of_tokens_in_the_loss",
                value=left,
                message=message,
                evidence=tuple(self._masked.evidence),
            )
        ]
