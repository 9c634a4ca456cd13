"""ddmin against all subsets, one by one."""

import random
from itertools import combinations

import pytest

from onepolicy.records.verdict import Status
from onepolicy.workflow.bisect_minimise import minimise, split, unsure, without


def subsets(names):
    return [frozenset(c) for n in range(len(names) + 1) for c in combinations(names, n)]


def asking(fails, unknown=lambda _: False):
    """An `ask`, and the sets that it was asked for."""
    asked = []

    def ask(names):
        asked.append(frozenset(names))
        if unknown(frozenset(names)):
            return Status.UNKNOWN
        return Status.FAIL if fails(frozenset(names)) else Status.PASS

    return ask, asked


@pytest.mark.parametrize("seed", range(60))
def test_the_set_fails_and_no_switch_of_it_can_be_left_out(seed):
    draw = random.Random(seed)
    names = tuple("abcdefghij"[: draw.randint(1, 8)])
    planted = [frozenset(draw.sample(names, draw.randint(1, len(names)))) for _ in range(draw.randint(1, 3))]
    ask, asked = asking(lambda some: any(one <= some for one in planted))
    found = frozenset(minimise(names, ask))
    smallest = [one for one in planted if not any(other < one for other in planted)]
    assert found in smallest
    assert len(set(asked)) <= len(names) ** 2 + 3 * len(names)


@pytest.mark.parametrize("seed", range(60))
def test_switches_that_undo_others_leave_a_set_that_fails_and_none_of_it_can_be_left_out(seed):
    """Outcomes drawn for each subset, without any order among them."""
    draw = random.Random(seed)
    names = tuple("abcdef"[: draw.randint(1, 6)])
    outcome = {one: draw.choice([Status.PASS, Status.FAIL, Status.UNKNOWN]) for one in subsets(names)}
    outcome[frozenset()], outcome[frozenset(names)] = Status.PASS, Status.FAIL
    found = minimise(names, lambda some: outcome[frozenset(some)])
    assert outcome[frozenset(found)] is Status.FAIL
    for name in found:
        assert outcome[frozenset(found) - {name}] is not Status.FAIL
    in_doubt = {name for name in found if outcome[frozenset(found) - {name}] is Status.UNKNOWN}
    assert set(unsure(found, lambda some: outcome[frozenset(some)])) == in_doubt


@pytest.mark.parametrize("pair", list(combinations("abcdefgh", 2)))
def test_any_pair_of_eight_that_only_together_fails_is_found_in_at_most_thirty_questions(pair):
    ask, asked = asking(lambda some: set(pair) <= some)
    assert minimise(tuple("abcdefgh"), ask) == pair
    assert len(set(asked)) <= 30


def test_a_single_culprit_of_sixty_four_takes_a_dozen_questions():
    names = tuple(f"s{i}" for i in range(64))
    for culprit in names[::9]:
        ask, asked = asking(lambda some, culprit=culprit: culprit in some)
        assert minimise(names, ask) == (culprit,)
        assert len(set(asked)) <= 12


def test_a_switch_that_needs_another_to_start_is_kept_and_named():
    """`b` is the fault; without `a` the engine does not start with it."""
    ask, _ = asking(lambda some: "b" in some, unknown=lambda some: "b" in some and "a" not in some)
    found = minimise(tuple("abcd"), ask)
    assert found == ("a", "b")
    assert unsure(found, ask) == ("a",)


def test_parts_are_in_order_and_hold_everything_once():
    assert split(("a", "b", "c", "d", "e"), 2) == [("a", "b"), ("c", "d", "e")]
    assert split(("a", "b", "c"), 3) == [("a",), ("b",), ("c",)]
    assert without(("a", "b", "c"), ("b",)) == ("a", "c")
