"""A small version of benchmarks/behave.py."""

import pytest

from behave import FALSE_ALARMS, IDENTICAL, PASSES_ON_MARGIN, false_alarms, rare_decided, seen

COMPARISONS = 80


@pytest.mark.parametrize("name", [name for name in IDENTICAL if "50" not in name])
def test_one_configuration_seldom_alarms(name):
    """Three standard errors above what is promised: 80 comparisons are few."""
    error = (FALSE_ALARMS * (1 - FALSE_ALARMS) / COMPARISONS) ** 0.5
    chance, alarms = false_alarms(name, COMPARISONS)
    assert alarms <= chance <= FALSE_ALARMS + 3 * error


def test_a_change_of_length_is_seen_half_of_the_time_in_20_x_3_and_nearly_always_in_50_x_4():
    assert 0.3 < seen(20, 3, COMPARISONS) < 0.7
    assert seen(50, 4, 30) > 0.85


def test_the_simulation_sees_nothing_where_nothing_is():
    assert seen(20, 3, COMPARISONS, length=1.0) <= 0.1


def test_a_rare_reward_on_the_margin_seldom_passes():
    assert rare_decided(50, 4, 400)[0] <= PASSES_ON_MARGIN
