"""The third condition of the issue: a sync failure and an engine upgrade in 200 steps, and which is which."""

from dataclasses import replace

import pytest

from onepolicy.numerics.steps.jumps import named
from steps import Scene, simulated

PLANTED = Scene(steps=200, stale_from=120, stale_to=140, jump_at=160)
SEEDS = range(4)


def events(scene, seed):
    return named(list(simulated(scene, seed)))


def around(step, found, wide=4):
    return abs(found - step) <= wide


@pytest.mark.parametrize("advantages", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
def test_without_any_hint_the_shape_names_both(seed, advantages):
    sync, engine = events(replace(PLANTED, advantages=advantages), seed)
    assert sync.kind == "growing"
    assert around(120, sync.first)
    assert sync.last == 139
    assert engine.kind == "level"
    assert around(160, engine.first, 1)
    assert engine.last is None
    assert engine.after / engine.before == pytest.approx(3, rel=0.4)


def test_the_link_to_what_was_rewarded_says_that_the_weights_were_not_sent():
    sync, engine = events(PLANTED, 1)
    assert sync.link_z > 6
    assert "the updated weights did not reach the rollout engine" in sync.message
    assert "weights arrive again" in sync.message
    assert abs(engine.link_z) < 4
    assert "an engine, a precision or a configuration changed" in engine.message


def test_its_shape_says_when_a_growth_began_that_was_below_the_noise():
    messages = [events(replace(PLANTED, update=0.03), seed)[0].message for seed in SEEDS]
    since = [int(m.partition("since about step ")[2].split(".")[0]) for m in messages if "since about" in m]
    assert since
    assert all(around(120, step, 5) for step in since)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_the_trainer_says_names_the_upgrade_even_more_plainly(seed):
    scene = replace(PLANTED, upgrade_note="vllm 0.12")
    records = [
        r if r.about else r.model_copy(update={"about": {"rollout_engine": "vllm 0.11"}})
        for r in simulated(scene, seed)
    ]
    sync, engine = named(records)
    assert sync.because == ()
    assert engine.because == ('rollout_engine "vllm 0.11" -> "vllm 0.12" at step 160',)
    assert engine.message.endswith('What changed then: rollout_engine "vllm 0.11" -> "vllm 0.12" at step 160.')


@pytest.mark.parametrize("seed", SEEDS)
def test_a_failure_that_lasts_hides_the_upgrade_and_the_trainers_word_is_all_there_is(seed):
    scene = replace(PLANTED, stale_to=1 << 30, upgrade_note="vllm 0.12")
    records = [
        r if r.about else r.model_copy(update={"about": {"rollout_engine": "vllm 0.11"}})
        for r in simulated(scene, seed)
    ]
    [sync] = named(records)
    assert sync.kind == "growing"
    assert sync.last is None
    assert 'Changed meanwhile: rollout_engine "vllm 0.11" -> "vllm 0.12" at step 160.' in sync.message


@pytest.mark.parametrize("seed", SEEDS)
def test_an_upgrade_on_top_of_a_growth_is_seen_where_it_is_large_enough(seed):
    scene = replace(PLANTED, stale_to=1 << 30, update=0.05, factor=400.0, prompts=32)
    sync, engine = events(scene, seed)
    assert sync.kind == "growing"
    assert engine.kind == "level"
    assert around(160, engine.first, 2)
    assert "on top of the growth" in engine.message


@pytest.mark.parametrize("seed", range(8))
def test_nothing_is_named_where_nothing_happened(seed):
    assert events(Scene(steps=200), 100 + seed) == []


def test_slow_drift_is_nothing(step_of):
    assert named([step_of(step, 1e-3 * 1.01**step) for step in range(1, 300)]) == []


def test_one_bad_step_is_a_single_step(step_of):
    [event] = named([step_of(step, 2e-2 if step == 50 else 1e-3) for step in range(1, 100)])
    assert (event.kind, event.first, event.last) == ("single step", 50, 50)
    assert event.message.startswith("step 50: k3 0.001 -> 0.02 (20 times) and back.")


def test_a_level_that_goes_back_has_an_end(step_of):
    [event] = named([step_of(step, 5e-3 if 50 <= step < 56 else 1e-3) for step in range(1, 100)])
    assert (event.kind, event.first, event.last) == ("level", 50, 55)


def test_a_level_may_fall(step_of):
    [event] = named([step_of(step, 1e-4 if step >= 50 else 1e-3) for step in range(1, 100)])
    assert (event.kind, event.first, event.last) == ("level", 50, None)
    assert event.after < event.before


def test_weights_that_are_never_sent_grow_from_the_start():
    [event] = named(list(simulated(Scene(steps=40, stale_from=1), 0)))
    assert event.kind == "growing"
    assert event.first <= 9


def test_a_declared_lag_is_apart_from_the_numerics(declared_step):
    lag = lambda step: min(step - 59, 8) if 60 <= step < 80 else 0  # noqa: E731
    records = [declared_step(step, {lag(step): 1000}, 1e-3 * (1 + lag(step))) for step in range(1, 120)]
    [event] = named(records)
    assert (event.kind, event.first, event.last, event.declared) == ("growing", 60, 79, True)
    assert "as their versions say" in event.message
    assert event.before is None


def test_a_few_steps_are_too_few_for_anything(step_of):
    assert named([step_of(step, 10.0**-step) for step in range(1, 5)]) == []
    assert named([]) == []
