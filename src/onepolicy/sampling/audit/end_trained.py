"""Is the end token in the loss?"""

from __future__ import annotations

from onepolicy.records.verdict import Verdict
from onepolicy.sampling.audit.asked import Asked
from onepolicy.sampling.audit.call import Call
from onepolicy.sampling.audit.found import Found, passed, shares, unknown

CHECK = "end_trained"


class EndTrained:
    """Fails if end tokens are masked out of the loss of completions that are in it."""

    def __init__(self, asked: Asked) -> None:
        self._ends = asked.all_ends
        self._ended = 0
        self._found = Found()

    def add(self, call: Call) -> None:
        """Take in one call."""
        if call.last not in self._ends or not call.trained[:-1].any():
            return
        self._ended += 1
        if not call.trained[-1]:
            note = f"end token {call.last} is masked, the token before it is trained on"
            self._found.add(call, note, position=len(call.completion) - 1)

    def verdicts(self) -> list[Verdict]:
        """One."""
        if not self._ended:
            return [unknown(CHECK, "not checked: no completion that is in the loss ends with an end token.")]
        if not self._found.count:
            return [passed(CHECK, f"the end token of {self._ended} completions is in the loss.")]
        message = (
            f"{shares(self._found.count, self._ended, 'completions')} end with an end token that the loss leaves "
            f"out; the first is in rollout {self._found.first}. The policy never learns to stop. A mask that hides "
            "padding hides the end too where both have one id: build it from lengths."
        )
        return [self._found.failed(CHECK, message, quantity="ends_without_loss")]
