"""The bound on the chance of coincidences, against enumeration."""

import itertools
import math

import numpy as np
import pytest

from onepolicy.sampling.audit.coincidences import Coincidences

PROBABILITIES = (0.5, 0.3, 0.15, 0.05)


def counted(draws, probabilities=PROBABILITIES) -> Coincidences:
    seen = Coincidences()
    for x in draws:
        seen.add("group", bytes([x]), logprob=math.log(probabilities[x]))
    return seen


def every_sequence(n: int):
    for draws in itertools.product(range(len(PROBABILITIES)), repeat=n):
        yield math.prod(PROBABILITIES[x] for x in draws), draws


def test_hits_and_expectation_agree_on_average_over_every_sequence():
    hits = expected = total = 0.0
    for weight, draws in every_sequence(5):
        seen = counted(draws)
        total += weight
        hits += weight * seen.hits
        expected += weight * seen.expected
    assert total == pytest.approx(1)
    assert hits == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("alpha", [0.5, 0.2, 0.05, 0.01])
def test_a_chance_of_at_most_alpha_comes_no_more_often_than_alpha(alpha):
    often = sum(weight for weight, draws in every_sequence(6) if counted(draws).chance <= alpha)
    assert often <= alpha


def test_one_unlikely_coincidence_is_enough_and_likely_ones_are_never():
    rare = (1e-8, 1 - 1e-8)
    assert counted([0, 0], rare).chance < 1e-3
    assert counted([1] * 1000, rare).chance == 1.0
    assert counted(range(4)).chance == 1.0


def test_likely_coincidences_elsewhere_do_not_hide_an_unlikely_one():
    seen = counted([1] * 500, (1e-9, 0.9))
    assert seen.chance > 1e-2
    for _ in range(2):
        seen.add("another group", b"rare", logprob=math.log(1e-9))
    assert seen.chance < 1e-3


def test_many_coincidences_that_are_each_likely_add_up():
    seen = Coincidences()
    for group in range(200):
        for _ in range(2):
            seen.add(group, b"x", logprob=math.log(0.5))
    assert (seen.hits, seen.expected) == (200, pytest.approx(100))
    assert seen.chance < 1e-9


def test_the_numbers_of_a_large_run_do_not_overflow():
    seen = counted(np.zeros(3000, dtype=int).tolist(), (1e-300, 0.5))
    assert 0 < seen.chance < 1e-100
