"""Do completions keep to their limits, and what does the limit count?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from onepolicy.records.verdict import Verdict
from onepolicy.sampling.audit.asked import Asked
from onepolicy.sampling.audit.call import Call
from onepolicy.sampling.audit.found import Found, passed, unknown

CHECK = "length_limit"
ENOUGH = 3
"""different lengths of a kind that must have one and the same sum before it is said what a limit counts"""


class LengthLimit:
    """Fails if a completion is longer than its limit, is said to be cut below it, or ended before its shortest length.

    What a limit counts shows in the calls that it cut: what they all have equal.
    """

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._calls = self._cut = 0
        self._long, self._early, self._short = Found(), Found(), Found()
        self._completions: Counter[int] = Counter()
        self._totals: Counter[int] = Counter()
        self._characters: Counter[int] = Counter()
        self._texts = True

    def add(self, call: Call) -> None:
        """Take in one call."""
        protocol, count = self._asked.protocol, len(call.completion)
        self._calls += 1
        if self._asked.longest is not None and count > self._asked.longest:
            self._long.add(call, f"{count} tokens, {self._asked.longest} are allowed")
        elif protocol.max_total_tokens is not None and call.total > protocol.max_total_tokens:
            self._long.add(call, f"{call.total} tokens with its prompt, {protocol.max_total_tokens} are allowed")
        if call.says_length:
            self._add_cut(call)
        elif call.says_stop and count < protocol.min_new_tokens:
            self._short.add(call, f"{count} tokens, at least {protocol.min_new_tokens} were asked for")

    def verdicts(self) -> list[Verdict]:
        """One."""
        asked, counts = self._asked, self._counts()
        if self._long.count:
            return [self._failed(self._long, f"are longer than their limit. {counts}", "calls_beyond_the_limit")]
        if self._early.count:
            what = f"say that a limit cut them, and are shorter than {asked.longest} tokens. {counts}"
            return [self._failed(self._early, what, "calls_cut_below_the_limit")]
        if self._short.count:
            what = f"stopped before the {asked.protocol.min_new_tokens} tokens that were asked for at least."
            return [self._failed(self._short, what, "calls_below_the_shortest_length")]
        if asked.longest is None:
            return [unknown(CHECK, f"not checked: the run does not say its limit (--max-new-tokens). {counts}".strip())]
        return [passed(CHECK, f"{self._calls} completions keep to {asked.longest} tokens. {counts}".strip())]

    def _add_cut(self, call: Call) -> None:
        asked, count = self._asked, len(call.completion)
        self._cut += 1
        self._completions[count] += 1
        self._totals[call.total] += 1
        self._texts &= call.text is not None
        self._characters[len(call.text or "")] += 1
        whole = call.total == asked.protocol.max_total_tokens
        if asked.longest is not None and count < asked.longest and not whole and call.last not in asked.must_end_at:
            self._early.add(call, f"{count} tokens, {call.total} with its prompt; the limit is {asked.longest}")

    def _failed(self, found: Found, what: str, quantity: str) -> Verdict:
        message = f"{found.count} of {self._calls} calls {what.strip()} The first is in rollout {found.first}."
        return found.failed(CHECK, message, quantity=quantity)

    def _counts(self) -> str:
        """What the cut calls have equal, in a sentence; empty if that cannot be seen."""
        one = _only(self._completions)
        if one is not None and len(self._totals) >= ENOUGH:
            return f"The limit counts tokens of the completion: {one} in all {self._cut} calls that it cut."
        if len(self._completions) < ENOUGH:
            return ""
        if (total := _only(self._totals)) is not None:
            return (
                f"The limit counts prompt and completion: together {total} tokens in all {self._cut} calls that it "
                "cut. A long prompt leaves a short answer."
            )
        if self._texts and (characters := _only(self._characters)) is not None:
            return f"The limit counts characters: {characters} in all {self._cut} calls that it cut."
        return "The calls that were cut share neither a length nor a sum with the prompt; several limits are at work."


def _only(counts: Mapping[int, int]) -> int | None:
    return next(iter(counts)) if len(counts) == 1 else None
