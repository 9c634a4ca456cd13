"""When the order of the processors matters, against full distributions."""

from itertools import combinations, permutations

import numpy as np
import pytest

from onepolicy.records.processors import DEFAULT_ORDER, pairs_that_matter, switched_on
from onepolicy.records.protocol import SamplingProtocol

VALUES = {
    "temperature": {"temperature": 0.6},
    "top_k": {"top_k": 4},
    "top_p": {"top_p": 0.7},
    "min_p": {"min_p": 0.25},
}


def softmax(logits):
    p = np.exp(logits - logits.max())
    return p / p.sum()


def processed(logits, protocol, seen):
    z = logits.astype(float).copy()
    for name in protocol.processors:
        p = softmax(z)
        if name == "temperature":
            z = z / protocol.temperature
        elif name == "top_k" and protocol.top_k:
            z[np.argsort(-z)[protocol.top_k :]] = -np.inf
        elif name == "min_p":
            z[p < protocol.min_p * p.max()] = -np.inf
        elif name == "top_p":
            before = 0.0
            for token in np.argsort(-p):
                if before >= protocol.top_p:
                    z[token] = -np.inf
                before += p[token]
        elif name == "penalties":
            for token in seen:
                factor = protocol.repetition_penalty if z[token] < 0 else 1 / protocol.repetition_penalty
                z[token] = z[token] * factor - protocol.presence_penalty
    return softmax(z)


def differ(a, b):
    """Whether two orders give another distribution for some of many random logits."""
    generator = np.random.default_rng(0)
    rows = generator.normal(scale=2.0, size=(60, 8))
    return any(not np.allclose(processed(z, a, (0, 3, 5)), processed(z, b, (0, 3, 5))) for z in rows)


def both(values, first, second):
    return (SamplingProtocol(**values, processors=order) for order in (first, second))


SWITCHES = [
    {name: value for switch in on for name, value in VALUES[switch].items()}
    for count in range(len(VALUES) + 1)
    for on in combinations(VALUES, count)
]


@pytest.mark.parametrize("values", SWITCHES, ids=lambda values: "-".join(values) or "nothing")
def test_an_order_matters_exactly_if_the_distributions_differ(values):
    for order in permutations(("temperature", "top_k", "top_p", "min_p")):
        ours, theirs = both(values, DEFAULT_ORDER, ("penalties", *order))
        assert bool(pairs_that_matter(ours.processors, theirs.processors, protocol=ours)) == differ(ours, theirs)


@pytest.mark.parametrize("penalty", [{"repetition_penalty": 1.4}, {"presence_penalty": 0.8}], ids=str)
@pytest.mark.parametrize("other", sorted(VALUES))
def test_a_penalty_commutes_with_a_temperature_only_if_it_divides(penalty, other):
    values = penalty | VALUES[other]
    ours, theirs = both(values, ("penalties", other), (other, "penalties"))
    pairs = pairs_that_matter(ours.processors, theirs.processors, protocol=ours)
    assert bool(pairs) == differ(ours, theirs)
    assert bool(pairs) == ((other, "repetition_penalty" in penalty) != ("temperature", True))


def test_what_is_off_or_greedy_has_no_order():
    assert switched_on(SamplingProtocol()) == frozenset()
    greedy = SamplingProtocol(temperature=0.0, top_p=0.9, min_p=0.1)
    assert pairs_that_matter(DEFAULT_ORDER, DEFAULT_ORDER[::-1], protocol=greedy) == ()


def test_the_pair_that_changes_places_is_named():
    protocol = SamplingProtocol(temperature=0.7, top_p=0.9)
    assert pairs_that_matter(DEFAULT_ORDER, DEFAULT_ORDER[::-1], protocol=protocol) == (("temperature", "top_p"),)
