"""Does a completion go on after an end token?"""

from __future__ import annotations

from collections import Counter

import numpy as np

from onepolicy.records.verdict import Status, Verdict
from onepolicy.sampling.audit.asked import Asked
from onepolicy.sampling.audit.call import Call
from onepolicy.sampling.audit.found import Found, passed, unknown

CHECK = "tokens_after_end"


class TokensAfterEnd:
    """Fails if sampled tokens follow an end token; unknown if that token ends no completion of the run.

    Such a token may only be named like an end: some templates close a part of an answer with one.
    """

    def __init__(self, asked: Asked) -> None:
        self._ends = asked.must_end_at
        self._sure = set(asked.protocol.stop_token_ids) | (asked.ends if asked.ends_are_given else set())
        self._ignored = asked.protocol.ignore_eos
        self._calls = 0
        self._padded = 0
        self._passed: Counter[int] = Counter()
        self._stopped: Counter[int] = Counter()
        self._found = Found()

    def add(self, call: Call) -> None:
        """Take in one call."""
        self._calls += 1
        places = np.flatnonzero(np.isin(call.completion[:-1], list(self._ends)))
        if not len(places):
            self._stopped[call.last] += not call.says_length
            return
        first = int(places[0])
        behind = call.completion[first + 1 :]
        token = int(call.completion[first])
        self._passed[token] += 1
        self._padded += len(set(behind.tolist())) == 1 and len(behind) > 1
        self._found.add(call, f"{len(behind)} tokens after the end token {token}", position=first)

    def verdicts(self) -> list[Verdict]:
        """One."""
        if self._ignored:
            return [unknown(CHECK, "not checked: the protocol ignores end tokens.")]
        if not self._ends:
            return [unknown(CHECK, "not checked: the run names no end token. Name them with --end.")]
        if not self._found.count:
            return [passed(CHECK, f"nothing follows an end token in {self._calls} calls.")]
        ends = any(token in self._sure or self._stopped[token] for token in self._passed)
        verdict = self._found.failed(CHECK, self._message(ends=ends), quantity="calls_beyond_an_end")
        is_sure = ends or self._padded == self._found.count
        return [verdict if is_sure else verdict.model_copy(update={"status": Status.UNKNOWN})]

    def _message(self, *, ends: bool) -> str:
        ids = ", ".join(str(token) for token, _ in self._passed.most_common(4))
        said = (
            f"in {self._found.count} of {self._calls} calls tokens follow an end token (id {ids}); the first is in "
            f"rollout {self._found.first}."
        )
        if self._padded == self._found.count:
            return (
                f"{said} All of it is one and the same token: padding was kept as if it had been sampled. Cut it off."
            )
        if ends:
            return (
                f"{said} It is one that ends completions. What follows is in the loss and in the length; give the "
                "engine all end ids, or cut there."
            )
        return (
            f"{said} This token ends no completion of the run: the engine does not know it for an end, or it is none "
            "in this template. Say which ids end (--end)."
        )
