"""A small version of benchmarks/steps.py: false alarms, and what is planted."""

from dataclasses import replace

import pytest

from steps import FALSE_PER_1000, LEAST, TOLD, Scene, false_alarms, faults, on_the_limit, quiet, told

FAULTS = {name: planted for name, planted in faults().items() if planted.promised}


@pytest.mark.parametrize("name", quiet())
def test_false_alarms_are_rare(name):
    scene = quiet()[name]
    short = replace(scene, steps=scene.steps // 2 if scene.starts == 1 else scene.steps, starts=min(scene.starts, 8))
    counts = false_alarms(short, range(2))
    assert sum(counts.values()) <= 1
    assert FALSE_PER_1000 * 2 * short.steps * short.starts / 1000 > 0.9


@pytest.mark.parametrize("name", FAULTS)
def test_what_is_planted_is_named_in_time(name):
    planted = FAULTS[name]
    found = [told(planted, seed)[0] for seed in range(6)]
    in_time = [steps for steps in found if steps is not None and steps <= TOLD[planted.kind]]
    assert len(in_time) >= LEAST[planted.kind] * 6 - 1


def test_a_level_on_the_limit_is_seldom_called_beyond_it():
    assert on_the_limit(range(1)) <= 10


def test_the_simulation_sees_a_watch_that_says_too_much():
    assert sum(false_alarms(Scene(steps=115, jump_at=80, prompts=40, factor=5.0), range(2)).values()) == 2
