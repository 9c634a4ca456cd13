"""The link between a rollout's advantage and what the trainer thinks of it."""

import math

import numpy as np
import pytest

from onepolicy.numerics.steps.link import Links, link_over


def drawn(rng, n=64, prefer=0.0, scale=0.01):
    a = rng.normal(size=n)
    return a, scale * (prefer * a + math.sqrt(1 - prefer**2) * rng.normal(size=n))


def test_one_step_is_the_ordinary_correlation_and_slope(step_of, link_sums):
    a, d = drawn(np.random.default_rng(0), prefer=0.4)
    link = link_over([step_of(1, advantage=link_sums(a, d))])
    assert link.correlation == pytest.approx(np.corrcoef(a, d)[0, 1])
    assert link.slope == pytest.approx(np.polyfit(a, d, 1)[0] * a.std(ddof=1))
    assert link.z == pytest.approx(link.correlation * math.sqrt(63))
    assert link.rollouts == 64


def test_each_step_is_around_its_own_means(step_of, link_sums):
    rng = np.random.default_rng(1)
    records = []
    for step in range(1, 21):
        a, d = drawn(rng)
        records.append(step_of(step, advantage=link_sums(a + step, d + 0.1 * step)))
    assert abs(link_over(records).z) < 3


def test_z_is_standard_when_advantages_are_dealt_out_at_random_whatever_the_tails(step_of, link_sums):
    rng = np.random.default_rng(2)
    found = []
    for _ in range(400):
        links = Links()
        for step in range(5):
            d = rng.standard_t(2, 32)
            links.add(step_of(step, advantage=link_sums(rng.permutation(np.repeat([-1.0, 1.0], 16)), d)))
        found.append(links.now().z)
    assert np.mean(found) == pytest.approx(0, abs=0.15)
    assert np.std(found) == pytest.approx(1, abs=0.12)


def test_a_trainer_that_has_learnt_is_seen_and_exceeds_what_was_before(step_of, link_sums):
    rng, links = np.random.default_rng(3), Links()
    for step in range(1, 61):
        links.add(step_of(step, advantage=link_sums(*drawn(rng, prefer=0.3 if step > 40 else 0.0))))
    link = links.now()
    assert link.z > 5.5
    assert link.excess > 4
    assert link.steps == 20


def test_a_link_that_was_always_there_has_no_excess(step_of, link_sums):
    rng, links = np.random.default_rng(4), Links()
    for step in range(1, 65):
        links.add(step_of(step, advantage=link_sums(*drawn(rng, prefer=0.2))))
    assert links.now().z > 4
    assert links.now().excess < 3


@pytest.mark.parametrize(
    ("a", "d"),
    [([], []), ([1.0, -1.0], [0.1, 0.2]), ([1.0] * 8, range(8)), (range(8), [0.0] * 8), (range(8), [math.inf] * 8)],
)
def test_without_advantages_that_differ_there_is_no_link(step_of, link_sums, a, d):
    links = Links()
    links.add(step_of(1, advantage=link_sums(list(a), list(d))))
    assert links.now() is None


def test_a_step_whose_tokens_say_that_they_are_stale_explains_itself(declared_step, link_sums):
    a, d = drawn(np.random.default_rng(5), prefer=0.9)
    record = declared_step(1, {0: 10, 1: 90}).model_copy(update={"advantage": link_sums(a, d)})
    assert link_over([record]) is None
