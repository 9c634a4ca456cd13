"""Is there an end token at the limit, which nobody sampled?"""

from __future__ import annotations

import math

import numpy as np

from onepolicy.records.tokens import Float64
from onepolicy.records.verdict import Verdict
from onepolicy.sampling.audit.asked import Asked
from onepolicy.sampling.audit.call import Call
from onepolicy.sampling.audit.coincidences import ALPHA
from onepolicy.sampling.audit.found import Found, passed, shares, unknown

CHECK = "forced_end"
MANY = 4
"""cut calls from which on more than half with an end token are no accident, whatever their logprobs"""
_STAKES = np.array([0.5, 0.1, 0.01, 0.001])


class ForcedEnd:
    """Fails if an end token stands at the limit of cut calls too often: it was written over the last sampled one.

    A policy may end at the very limit, and some engines then say "length". Of E end tokens one comes with its own
    probability p, so 1 / (E p) where one came and 0 elsewhere has a mean of at most 1. The product over all cut calls
    of one minus a stake plus the stake times it has a mean of at most 1 too; one over it bounds the chance.
    """

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._cut = 0
        self._found = Found()
        self._logprobs: list[float] = []
        self._log_wealth: Float64 = np.zeros(len(_STAKES))

    def add(self, call: Call) -> None:
        """Take in one call."""
        if not call.says_length or len(call.completion) != self._asked.longest:
            return
        self._cut += 1
        ends = self._asked.must_end_at
        value = math.nan if call.logprobs is None else float(call.logprobs[-1])
        if call.last not in ends:
            self._log_wealth += np.log1p(-_STAKES)
            return
        shown = "no logprob" if math.isnan(value) else f"logprob {value:.3g}"
        self._found.add(call, f"end token {call.last} at the limit, {shown}", position=len(call.completion) - 1)
        if not math.isnan(value):
            self._logprobs.append(value)
            odds = -value - math.log(len(ends))
            self._log_wealth += np.logaddexp(np.log1p(-_STAKES), np.log(_STAKES) + odds)

    def verdicts(self) -> list[Verdict]:
        """One."""
        if not self._cut:
            return [unknown(CHECK, "not checked: no call is known to be cut at its limit.")]
        if not self._found.count:
            return [passed(CHECK, f"none of {self._cut} calls cut at the limit ends with an end token.")]
        count = shares(self._found.count, self._cut, "calls cut at the limit")
        if not self._is_forced():
            return [passed(CHECK, f"{count} end with an end token, as a policy that ends just there may.")]
        said = f", with a logprob of {np.median(self._logprobs):.3g} in the median" if self._logprobs else ""
        message = (
            f"{count} end with an end token{said}; the first is in rollout {self._found.first}. Something writes an "
            "end over the last sampled token, and training then takes it for the policy's. Leave the ids as they "
            "were sampled."
        )
        return [self._found.failed(CHECK, message, quantity="ends_at_the_limit")]

    def _is_forced(self) -> bool:
        if self._cut >= MANY and 2 * self._found.count > self._cut:
            return True
        log_mean = float(np.logaddexp.reduce(self._log_wealth)) - math.log(len(_STAKES))
        return self._asked.is_exact and log_mean >= -math.log(ALPHA)
