"""In which order a server's processors act, from draws at contexts where the orders keep different tokens."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations, product
from typing import Protocol

from onepolicy.records.processors import DEFAULT_ORDER, Processor, pairs_that_matter
from onepolicy.records.protocol import SamplingProtocol
from onepolicy.sampling.measured.agreement import Completions
from onepolicy.sampling.measured.knobs import OFF, Fields
from onepolicy.sampling.measured.processing import Listed, listed, processed

DRAWS = 32
"""completions for each pair"""
DECIDES = math.log(1e4)
"""nats by which the draws must speak for one order"""
DEPTHS = range(1, 4)
"""tokens that a completion has when a penalty is looked at, which acts on them"""
SURE = 0.4
"""probability of each of them at least"""
ODD = 0.01
"""share of the draws that neither order accounts for, such as by another rounding at an edge"""
WORTH = 0.3
"""nats that a draw must be expected to say at least"""
Pair = tuple[Processor, Processor]
_TRIED: Mapping[Processor, Mapping[str, Sequence[float]]] = {
    "penalties": {"presence_penalty": (1.0, 2.0), "frequency_penalty": (0.0, 2.0)},
    "temperature": {"temperature": (0.4, 0.6)},
    "top_k": {"top_k": (2, 3, 5, 8)},
    "top_p": {"top_p": (0.3, 0.5, 0.6, 0.7, 0.8, 0.9)},
    "min_p": {"min_p": (0.05, 0.1, 0.2, 0.4)},
}
"""values with which an order shows at some context or other"""


class Looks(Protocol):
    """What a server is asked."""

    def list_after(self, ids: Sequence[int]) -> Mapping[int, float]:
        """The most likely tokens after some ids: raw logprobs, in nats."""

    def drawn_after(self, ids: Sequence[int], fields: Fields, *, length: int, count: int) -> Completions | None:
        """So many completions of some ids, each with a seed of its own; None if the fields are refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Of two processors."""

    pair: Pair
    """as the draws show them, the first first; if they do not, as it was asked"""
    nats: float = 0.0
    """by which the draws are more likely under this order than under the other"""
    draws: int = 0

    @property
    def known(self) -> bool:
        """Whether the draws decide it."""
        return self.nats >= DECIDES

    def __str__(self) -> str:
        first, second = self.pair
        if not self.draws:
            return f"no context was found at which the order of {first} and {second} shows"
        return f"{first} before {second} ({self.draws} draws, {self.nats:.0f} nats)"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """A context and settings at which the two orders of a pair differ."""

    ids: tuple[int, ...]
    length: int
    """tokens of the completion, the last of which is looked at"""
    fields: Fields
    worth: float
    """nats that a draw says, as expected under the order under which it says less"""


def orders_of(protocol: SamplingProtocol) -> tuple[Pair, ...]:
    """The pairs whose order changes what is drawn under a protocol."""
    return pairs_that_matter(DEFAULT_ORDER, DEFAULT_ORDER[::-1], protocol=protocol)


def measured_order(pair: Pair, contexts: Sequence[Sequence[int]], looks: Looks) -> Order:
    """Which of two processors acts first. Sends a request for a list for each context, and the draws."""
    place = max(_places(pair, contexts, looks), key=lambda one: one.worth, default=None)
    if place is None or place.worth < WORTH:
        return Order(pair=pair)
    drawn = looks.drawn_after(place.ids, {**OFF, **place.fields}, length=place.length, count=DRAWS)
    nats = [_nats(pair, place, one, looks) for one in drawn or () if len(one) == place.length]
    total = math.fsum(nats)
    return Order(pair=pair if total >= 0 else (pair[1], pair[0]), nats=abs(total), draws=len(nats))


def order_from(found: Sequence[Order], *, like: Sequence[Processor] = DEFAULT_ORDER) -> tuple[Processor, ...]:
    """The order that has all pairs as they were found, and else is as near to `like` as can be."""
    firsts = [one.pair for one in found if one.known]
    chains = (order for order in permutations(like) if all(order.index(a) < order.index(b) for a, b in firsts))
    return next(chains, tuple(like))


def _places(pair: Pair, contexts: Sequence[Sequence[int]], looks: Looks) -> Iterator[_Place]:
    for ids in contexts:
        for drawn in _likely(ids, looks) if "penalties" in pair else [()]:
            given = listed(looks.list_after([*ids, *drawn]))
            for fields in _settings(pair) if given.tokens else ():
                worth = _worth(pair, given, fields, drawn)
                yield _Place(ids=tuple(ids), length=len(drawn) + 1, fields=fields, worth=worth)


def _likely(ids: Sequence[int], looks: Looks) -> Iterator[tuple[int, ...]]:
    """The beginnings of a completion, each token the likeliest; none after one that is unsure."""
    drawn: tuple[int, ...] = ()
    for _ in DEPTHS:
        given = listed(looks.list_after([*ids, *drawn])).tokens
        token = max(given, key=lambda one: given[one], default=None)
        if token is None or given[token] < SURE:
            return
        drawn = (*drawn, token)
        yield drawn


def _settings(pair: Pair) -> Iterator[Fields]:
    tried = {**_TRIED[pair[0]], **_TRIED[pair[1]]}
    for values in product(*tried.values()):
        yield dict(zip(tried, values, strict=True))


def _worth(pair: Pair, given: Listed, fields: Fields, drawn: Collection[int]) -> float:
    both = _both(pair, given, fields, drawn)
    if both is None:
        return 0.0
    return min(_divergence(one, other) for one, other in (both, both[::-1]))


def _both(
    pair: Pair, given: Listed, fields: Fields, drawn: Collection[int]
) -> tuple[dict[int, float], dict[int, float]] | None:
    one = processed(given, pair, fields, drawn=drawn)
    other = processed(given, pair[::-1], fields, drawn=drawn)
    return None if one is None or other is None else (one, other)


def _divergence(one: Mapping[int, float], other: Mapping[int, float]) -> float:
    return math.fsum(value * _ratio(token, one, other) for token, value in one.items())


def _ratio(token: int, one: Mapping[int, float], other: Mapping[int, float]) -> float:
    return math.log(_mixed(token, one) / _mixed(token, other))


def _mixed(token: int, found: Mapping[int, float]) -> float:
    return (1.0 - ODD) * found.get(token, 0.0) + ODD / 2


def _nats(pair: Pair, place: _Place, completion: Sequence[int], looks: Looks) -> float:
    """By how much a draw is more likely under the pair as it is asked."""
    *before, token = completion
    given = listed(looks.list_after([*place.ids, *before]))
    both = _both(pair, given, place.fields, before)
    return 0.0 if both is None else _ratio(token, *both)
