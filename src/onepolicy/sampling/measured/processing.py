"""The distribution that a list of the most likely tokens becomes under two processors, in one order or the other."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from onepolicy.records.processors import Processor
from onepolicy.sampling.measured.knobs import Fields

EDGE = 0.01
"""share of the mass within which an edge of a kept set is taken to be open: a server's rounding may move it"""


UNLISTED = 0.05
"""mass of what is not listed, at most, where nothing is cut"""


@dataclass(frozen=True, slots=True)
class Listed:
    """Probabilities of the listed tokens, and of all others together."""

    tokens: Mapping[int, float]
    """unsorted; they and `rest` sum to one"""
    rest: float
    highest_of_rest: float
    """no other token is more likely"""

    def scaled(self) -> Listed:
        """The same, summing to one."""
        total = math.fsum(self.tokens.values()) + self.rest
        tokens = {token: value / total for token, value in self.tokens.items()}
        return Listed(tokens, self.rest / total, self.highest_of_rest / total)


def listed(logprobs: Mapping[int, float]) -> Listed:
    """Of a list of raw logprobs, in nats."""
    tokens = {token: math.exp(value) for token, value in logprobs.items()}
    return Listed(tokens, max(1.0 - math.fsum(tokens.values()), 0.0), min(tokens.values(), default=1.0))


def processed(
    given: Listed, order: Sequence[Processor], fields: Fields, *, drawn: Collection[int] = ()
) -> dict[int, float] | None:
    """The probabilities of the tokens that are kept; None where the list is too short, or an edge too close, to tell.

    fields: names of a protocol's -> values, of the processors in `order`. drawn: ids that the completion has.
    """
    now: Listed | None = given
    for name in order:
        now = None if now is None else _ACTS[name](now, fields, drawn)
    return None if now is None or now.rest > UNLISTED else dict(now.tokens)


def _penalties(given: Listed, fields: Fields, drawn: Collection[int]) -> Listed | None:
    presence, frequency = float(fields["presence_penalty"]), float(fields["frequency_penalty"])
    tokens = dict(given.tokens)
    for token, count in Counter(drawn).items():
        if token in tokens:
            tokens[token] *= math.exp(-presence - frequency * count)
    return Listed(tokens, given.rest, given.highest_of_rest).scaled()


def _temperature(given: Listed, fields: Fields, _: Collection[int]) -> Listed | None:
    """Below 1 alone, where what is not listed has at most the mass that this says."""
    power = 1.0 / float(fields["temperature"])
    assert power >= 1.0, "above 1 a list says nothing of what it leaves out"
    tokens = {token: value**power for token, value in given.tokens.items()}
    most = given.highest_of_rest
    return Listed(tokens, given.rest * most ** (power - 1.0), most**power).scaled()


def _top_k(given: Listed, fields: Fields, _: Collection[int]) -> Listed | None:
    best = sorted(given.tokens.items(), key=lambda pair: -pair[1])
    size = int(fields["top_k"])
    if len(best) <= size or best[size - 1][1] - best[size][1] < EDGE / 10 or best[size - 1][1] < given.highest_of_rest:
        return None
    return Listed(dict(best[:size]), 0.0, 0.0).scaled()


def _top_p(given: Listed, fields: Fields, _: Collection[int]) -> Listed | None:
    """The rest counts as the least likely; it is a bound after a temperature, so it must not matter."""
    before, last, kept, most = 0.0, 0.0, {}, float(fields["top_p"])
    for token, value in sorted(given.tokens.items(), key=lambda pair: -pair[1]):
        if before >= most:
            break
        if value < given.highest_of_rest:
            return None
        kept[token], last = value, before
        before += value
    else:
        return None
    close = before - most < EDGE or most - last < EDGE
    return None if close else Listed(kept, 0.0, 0.0).scaled()


def _min_p(given: Listed, fields: Fields, _: Collection[int]) -> Listed | None:
    least = float(fields["min_p"]) * max(given.tokens.values())
    close = any(abs(value - least) < EDGE * least * 5 for value in given.tokens.values())
    if close or given.highest_of_rest >= least:
        return None
    return Listed({token: value for token, value in given.tokens.items() if value >= least}, 0.0, 0.0).scaled()


_ACTS: Mapping[Processor, Callable[[Listed, Fields, Collection[int]], Listed | None]] = {
    "penalties": _penalties,
    "temperature": _temperature,
    "top_k": _top_k,
    "top_p": _top_p,
    "min_p": _min_p,
}
