"""How unlikely it is that samples coincide as often as they do."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from onepolicy.records.tokens import Float64

ALPHA = 1e-3
"""chance of a false alarm over a whole run"""
_RATES = 2.0 ** (np.arange(-2, 11) / 2)
_KINDS = 12
_NATS_OF_A_KIND = 4.0
"""completions are of one kind whose logprobs lie within this; all below the last kind's are of the last one"""
_MOST_EXPONENT = 700.0
"""exp of more is no float"""


@dataclass(slots=True, kw_only=True)
class _Group:
    """What was drawn before: content -> its kind, and the probability of all contents of a kind together."""

    kinds: dict[bytes, int] = field(default_factory=dict)
    mass: Float64 = field(default_factory=lambda: np.zeros(_KINDS))


@dataclass(slots=True, kw_only=True)
class Coincidences:
    """Draws that equal an earlier one, against how many of them were to be expected.

    The chance q that a draw equals one of the different earlier ones is the sum of their probabilities, and is known
    before the draw. So exp(a hits - (exp(a) - 1) sum of q) has a mean of at most 1 for every a, whatever the policy.
    The same holds for completions of one kind, so that many likely coincidences do not hide one that is unlikely. The
    average over several a and all kinds has a mean of at most 1 too, and by Markov's inequality one over it bounds the
    chance of as many hits.
    """

    draws: int = 0
    hits_of_kind: Float64 = field(default_factory=lambda: np.zeros(_KINDS))
    expected_of_kind: Float64 = field(default_factory=lambda: np.zeros(_KINDS))
    _groups: dict[object, _Group] = field(default_factory=dict)

    def add(self, group: object, content: bytes, *, logprob: float) -> bool:
        """Take in one draw; returns whether it equals an earlier one of its group.

        logprob: in nats, of this content under the policy that all draws of the group come from.
        """
        earlier = self._groups.setdefault(group, _Group())
        self.draws += 1
        self.expected_of_kind += earlier.mass
        if content in earlier.kinds:
            self.hits_of_kind[earlier.kinds[content]] += 1
            return True
        kind = min(int(max(-logprob, 0.0) / _NATS_OF_A_KIND), _KINDS - 1)
        earlier.kinds[content] = kind
        earlier.mass[kind] += math.exp(min(logprob, 0.0))
        return False

    @property
    def hits(self) -> int:
        """Draws that equal an earlier one."""
        return int(self.hits_of_kind.sum())

    @property
    def expected(self) -> float:
        """Mean number of them, given what was drawn before each."""
        return float(self.expected_of_kind.sum())

    @property
    def chance(self) -> float:
        """At most this likely, if the draws are independent; 1 if it is not unlikely at all."""
        values = np.outer(_RATES, self.hits_of_kind) - np.outer(np.expm1(_RATES), self.expected_of_kind)
        log_mean = float(np.logaddexp.reduce(values, axis=None)) - math.log(values.size)
        return math.exp(-min(max(log_mean, 0.0), _MOST_EXPONENT))
