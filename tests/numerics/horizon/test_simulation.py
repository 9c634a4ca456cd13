"""A small version of benchmarks/horizon.py."""

import math

import pytest

from horizon import NOTHING, PLANTED, kept, rates

RUNS = 60
pytestmark = pytest.mark.full


@pytest.mark.parametrize("name", [name for name, family in NOTHING.items() if family.promised and family.prompts <= 48])
def test_nothing_is_found_where_nothing_is_and_the_interval_holds_the_truth(name):
    found = rates(NOTHING[name], RUNS)
    assert kept(found, RUNS, NOTHING[name]), found


def test_the_test_at_five_percent_errs_in_five_percent():
    size = rates(NOTHING["even"], 300, times=(1,)).bias_5
    assert size == pytest.approx(0.05, abs=3 * math.sqrt(0.05 * 0.95 / 300))


def test_a_planted_bias_and_a_planted_offset_are_found():
    assert rates(PLANTED["omega 0.005"], 50, times=(1,)).bias_1 > 0.8
    assert rates(PLANTED["offset 0.002, 200 prompts"], 50, times=(1,)).drift > 0.8
