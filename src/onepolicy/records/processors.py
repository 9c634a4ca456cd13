"""In which order logits are processed, and when another order is another distribution."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from onepolicy.records.protocol import SamplingProtocol

Processor = Literal["penalties", "temperature", "top_k", "top_p", "min_p"]
DEFAULT_ORDER: tuple[Processor, ...] = ("penalties", "temperature", "top_k", "top_p", "min_p")
"""of Transformers. vLLM has min_p before top_k and top_p, SGLang top_p before top_k, TensorRT-LLM the temperature
before the penalties, and llama.cpp the temperature last; see docs/protocol-frameworks.md"""


def switched_on(protocol: SamplingProtocol) -> frozenset[Processor]:
    """The processors that change anything under a protocol."""
    on: dict[Processor, bool] = {
        "penalties": protocol.has_penalties,
        "temperature": protocol.temperature != 1.0 and not protocol.is_greedy,
        "top_k": protocol.top_k > 0,
        "top_p": protocol.top_p < 1.0,
        "min_p": protocol.min_p > 0.0,
    }
    return frozenset(name for name, acts in on.items() if acts)


def pairs_that_matter(
    first: Sequence[Processor], second: Sequence[Processor], *, protocol: SamplingProtocol
) -> tuple[tuple[Processor, Processor], ...]:
    """The pairs of processors whose order differs and whose order changes what is drawn, as `first` has them.

    Empty if both orders give one distribution: two orders do when all pairs that do not commute stand alike. A greedy
    choice truncates nothing, so no order matters to it.
    """
    if protocol.is_greedy:
        return ()
    on = switched_on(protocol)
    place = {name: at for at, name in enumerate(second)}
    ours = [name for name in first if name in on and name in place]
    turned = [(a, b) for a, b in combinations(ours, 2) if place[a] > place[b]]
    return tuple((a, b) for a, b in turned if not _commute(frozenset((a, b)), protocol))


def _commute(pair: frozenset[Processor], protocol: SamplingProtocol) -> bool:
    """Whether two processors that are both on give one distribution in either order.

    top_k goes by the order of the tokens alone, which a temperature keeps, and min_p by the ratio to the most likely
    token, which top_k keeps. top_p sums probabilities, so whatever changes or removes some acts on it. A repetition
    penalty divides or multiplies logits, as a temperature does; the other penalties subtract.
    """
    if pair == {"penalties", "temperature"}:
        return protocol.presence_penalty == 0.0 and protocol.frequency_penalty == 0.0
    return pair in ({"top_k", "temperature"}, {"top_k", "min_p"})
