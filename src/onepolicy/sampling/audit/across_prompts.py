"""Do different prompts have one and the same completion?"""

from __future__ import annotations

import math

from onepolicy.records.verdict import Verdict
from onepolicy.sampling.audit.asked import Asked
from onepolicy.sampling.audit.call import Call
from onepolicy.sampling.audit.coincidences import ALPHA
from onepolicy.sampling.audit.found import Found, passed, unknown

CHECK = "same_completion"


class AcrossPrompts:
    """Fails if a completion that its own prompt makes very unlikely stands under another prompt too.

    A draw with a probability of at most p equals one of N earlier completions with a chance of at most N p. With p =
    ALPHA / N^2 for N draws, that any one of them does has a chance below ALPHA. Short answers that many prompts share
    are likelier than that.
    """

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._calls = 0
        self._first: dict[str, tuple[str, str, str]] = {}
        """digest of a completion -> prompt, trajectory and rollout that had it first"""
        self._hits: list[tuple[float, Call, str]] = []
        self._others = 0

    def add(self, call: Call) -> None:
        """Take in one call."""
        self._calls += 1
        own = (call.prompt_key[0], call.trajectory_id, call.rollout_id)
        prompt, trajectory_id, rollout_id = self._first.setdefault(call.digest, own)
        is_one_conversation = trajectory_id and trajectory_id == call.trajectory_id
        if prompt != call.prompt_key[0] and not is_one_conversation:
            self._add_hit(call, rollout_id)

    def verdicts(self) -> list[Verdict]:
        """One."""
        if self._asked.protocol.is_greedy or not self._asked.is_exact:
            why = "greedy" if self._asked.protocol.is_greedy else "the logprobs are not of what was drawn from"
            return [unknown(CHECK, f"{self._others} completions stand under several prompts; not judged: {why}.")]
        most = self._most_logprob()
        found = Found()
        for logprob, call, other in self._hits:
            if logprob <= most:
                found.add(call, f"the completion of {other}, logprob {logprob:.4g}")
        if not found.count:
            return [passed(CHECK, f"no unlikely completion of {self._calls} stands under two prompts.")]
        message = (
            f"{found.count} completions stand under another prompt too, though their own makes them unlikely "
            f"(logprob below {most:.3g}); the first is in rollout {found.first}. Rows were mixed up, or an answer of "
            "one request was given to another."
        )
        return [found.failed(CHECK, message, quantity="completions_of_another_prompt")]

    def _add_hit(self, call: Call, other: str) -> None:
        self._others += 1
        if call.logprob <= self._most_logprob():  # it only falls as calls come; NaN is not below it
            self._hits.append((call.logprob, call, other))

    def _most_logprob(self) -> float:
        return math.log(ALPHA) - 2 * math.log(max(self._calls, 1))
