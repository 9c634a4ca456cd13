"""Do the samples of one prompt have the same prompt?"""

from __future__ import annotations

import numpy as np

from onepolicy.records.tokens import IntArray
from onepolicy.records.verdict import Verdict
from onepolicy.sampling.audit.asked import Asked
from onepolicy.sampling.audit.call import Call
from onepolicy.sampling.audit.found import Found, passed, unknown

CHECK = "same_prompt"


class SamePrompt:
    """Fails if samples of one prompt begin with other ids; says on which side one of two was cut.

    The ids of each prompt are held once.
    """

    def __init__(self, asked: Asked) -> None:
        self._known: dict[tuple[str, str], IntArray] = {}
        self._calls = 0
        self._left, self._right, self._other = Found(), Found(), Found()

    def add(self, call: Call) -> None:
        """Take in one call."""
        if not call.begins:
            return
        self._calls += 1
        key = (call.prompt_id, call.step)
        if key not in self._known:
            self._known[key] = call.prompt.copy()  # a slice would hold on to the whole row group
        before = self._known[key]
        if np.array_equal(before, call.prompt):
            return
        short, long = sorted((before, call.prompt), key=len)
        note = f"a prompt of {len(call.prompt)} tokens, another sample has {len(before)}"
        if len(short) and np.array_equal(long[-len(short) :], short):
            self._left.add(call, f"{note}: cut on the left")
        elif np.array_equal(long[: len(short)], short):
            self._right.add(call, f"{note}: cut on the right")
        else:
            self._other.add(call, f"{note}: other ids")

    def verdicts(self) -> list[Verdict]:
        """One."""
        sides = {"cut on the left": self._left, "cut on the right": self._right, "of other ids": self._other}
        odd = {side: found for side, found in sides.items() if found.count}
        if self._calls == len(self._known):
            return [unknown(CHECK, "not checked: no prompt has two samples.")]
        if not odd:
            return [passed(CHECK, f"the {self._calls} samples of {len(self._known)} prompts begin as one another do.")]
        named = ", ".join(f"{found.count} {side}" for side, found in odd.items())
        found = Found(
            count=sum(one.count for one in odd.values()), evidence=[e for one in odd.values() for e in one.evidence]
        )
        message = (
            f"{found.count} of {self._calls} samples have another prompt than the first sample of theirs: {named}; the "
            f"first is in rollout {found.first}. A limit was applied on one side only, or ids are shared by several "
            "prompts. Cut prompts once, before anything samples or scores."
        )
        return [found.failed(CHECK, message, quantity="samples_with_another_prompt")]
