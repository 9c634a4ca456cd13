"""What a step shows, said once."""

import pickle
from dataclasses import replace

import pytest

from onepolicy.judgement.limits import Limits
from onepolicy.numerics.steps.record import WORST_EDGES
from onepolicy.numerics.steps.watch import Watch
from steps import NO_LIMIT, Scene, simulated, watched

LIMITS = Limits(mean_kl=4e-3)
STALE = Scene(steps=22, stale_from=1)
JUMP = Scene(steps=130, jump_at=100, prompts=40)


def alarms(records, limits=LIMITS):
    watch = Watch(limits)
    return [alarm for record in records for alarm in watch.add(record)]


def told(records, limits=LIMITS):
    return [(alarm.step, alarm.kind) for alarm in alarms(records, limits)]


def worst(**prompts):
    """Prompts by the mean k3 of their worst rollout, by name of an edge that it lies just above."""
    counts = [0] * (len(WORST_EDGES) + 1)
    for edge, count in prompts.items():
        counts[WORST_EDGES.index(float(edge.removeprefix("k3_").replace("_", "-"))) + 1] = count
    return tuple(counts)


def test_a_quiet_run_says_nothing(step_of):
    assert told([step_of(step) for step in range(1, 200)]) == []


def test_the_same_steps_say_the_same():
    records = list(simulated(replace(JUMP, stale_from=60, stale_to=80), 3))
    assert alarms(records, NO_LIMIT) == alarms(records, NO_LIMIT) != []


def test_a_level_beyond_the_limit_is_said_with_its_numbers_and_once(step_of):
    records = [step_of(step, 1e-3 if step < 10 else 9e-3) for step in range(1, 40)]
    [limit] = [alarm for alarm in alarms(records) if alarm.kind == "limit"]
    assert limit.step == 10
    assert limit.message.startswith("step 10: mean k3 0.009 nats per token over 1,000 tokens of this step (at least ")
    assert limit.message.endswith("limit 0.004.")


def test_a_level_beyond_the_limit_is_said_again_after_it_was_within(step_of):
    k3s = [9e-3 if step in (*range(10, 15), *range(40, 45)) else 1e-3 for step in range(1, 60)]
    records = [step_of(step, k3) for step, k3 in enumerate(k3s, 1)]
    assert [step for step, kind in told(records) if kind == "limit"] == [10, 40]


def test_tokens_of_older_weights_are_not_held_against_the_limit(declared_step):
    records = [declared_step(step, {0: 500, 1: 500}) for step in range(1, 30)]
    stale = [
        r.model_copy(update={"by_lag": (r.by_lag[0], r.by_lag[1].model_copy(update={"mean_k3": 1.0}))}) for r in records
    ]
    assert told(stale) == []


def test_a_value_that_is_no_logprob_is_said_at_once(step_of):
    records = [step_of(step, invalid=3 if step in (5, 6) else 0) for step in range(1, 12)]
    [alarm] = alarms(records)
    assert (alarm.step, alarm.kind) == (5, "invalid")
    assert alarm.message.startswith("step 5: 3 of 1,000 tokens have something on one side that is no logprob")


def test_too_few_tokens_with_both_logprobs_are_said(step_of):
    [alarm] = alarms([step_of(1), step_of(2, valid=980), step_of(3, valid=990)])
    assert alarm.message.startswith("step 2: 980 of 1,000 tokens (98.0%) have a logprob on both sides, limit 99%.")


def test_many_prompts_with_a_bad_rollout_are_said_and_a_few_are_not(step_of):
    many, few = worst(k3_1e_3=8, k3_1e_1=32), worst(k3_1e_3=38, k3_1e_1=2)
    assert told([step_of(1, worst_rollouts=few)] * 20) == []
    [alarm] = alarms([step_of(1, worst_rollouts=many)])
    assert alarm.kind == "outliers"
    assert "32 of 40 prompts of this step have a rollout beyond a mean k3 of 0.01; at least 4" in alarm.message


def test_prompts_at_the_limit_are_no_outliers(step_of):
    exact = [0] * (len(WORST_EDGES) + 1)
    exact[WORST_EDGES.index(1e-2)] = 40
    assert told([step_of(step, worst_rollouts=tuple(exact)) for step in range(1, 30)]) == []


def test_outliers_of_a_step_with_stale_tokens_say_nothing_of_the_engines(declared_step):
    records = [
        declared_step(s, {0: 100, 1: 900}).model_copy(update={"worst_rollouts": worst(k3_1e_1=40)}) for s in range(9)
    ]
    assert told(records) == []


def test_weights_that_are_never_sent_are_named_with_numbers_and_what_to_do():
    first = alarms(simulated(STALE, 1), NO_LIMIT)[0]
    assert first.kind == "stale"
    assert first.step <= 10
    assert "the trainer prefers what was rewarded (z = " in first.message
    assert "the updated weights do not reach the rollout engine. Check the weight sync" in first.message


def test_without_advantages_growth_names_them():
    first = alarms(simulated(replace(STALE, advantages=False), 1), NO_LIMIT)[0]
    assert first.kind == "stale"
    assert first.message.startswith(
        f"step {first.step}: tokens that should come from the trainer's own weights differ by k3 "
    )
    assert "(floor of steps 1 to 3: " in first.message
    assert "rewarded" not in first.message


def test_what_goes_on_is_not_said_again():
    found = alarms(simulated(replace(STALE, steps=80), 1), NO_LIMIT)
    assert [alarm.kind for alarm in found] == ["stale"]


def test_weights_that_stop_arriving_a_second_time_are_named_a_second_time():
    once = list(simulated(Scene(steps=80, stale_from=30, stale_to=50), 1))
    again = [r.model_copy(update={"step": r.step + 80}) for r in simulated(Scene(steps=80, stale_from=30), 2)]
    steps = [alarm.step for alarm in alarms([*once, *again], NO_LIMIT) if alarm.kind == "stale"]
    assert len(steps) == 2
    assert 30 <= steps[0] < 50
    assert 110 <= steps[1] < 130


def test_a_declared_lag_is_called_lag_and_no_numerics(declared_step):
    records = [declared_step(step, {max(0, min(step - 30, 8)): 1000}) for step in range(1, 60)]
    [alarm] = alarms(records)
    assert (alarm.step, alarm.kind) == (33, "stale")
    assert "are 3 steps behind the trainer's" in alarm.message
    assert "This is staleness that the weight versions declare, and no numerics." in alarm.message


def test_a_jump_names_what_changed_with_it():
    records = [
        r.model_copy(
            update={"about": {"rollout_engine": "vllm 0.11" if r.step < 100 else "vllm 0.12", "lr": str(r.step)}}
        )
        for r in simulated(JUMP, 0)
    ]
    [jump] = alarms(records, NO_LIMIT)
    assert jump.kind == "jump"
    assert 100 <= jump.step <= 102
    assert jump.message.endswith('What changed then: rollout_engine "vllm 0.11" -> "vllm 0.12" at step 100.')


def test_a_jump_without_a_change_says_what_to_look_for():
    [jump] = watched(JUMP, 0, NO_LIMIT)
    assert jump.message.endswith("look for another engine, precision or configuration.")


def test_a_fall_of_the_level_is_no_alarm():
    assert watched(replace(JUMP, factor=1 / 3), 0, NO_LIMIT) == []


def test_steps_that_are_no_longer_equal_bit_by_bit_are_a_jump(step_of):
    records = [step_of(step, 0.0 if step < 20 else 1e-9, error=0) for step in range(1, 40)]
    [jump] = alarms(records)
    assert (jump.step, jump.kind) == (22, "jump")
    assert "both sides were equal bit by bit in 19 steps" in jump.message


def test_steps_in_which_nothing_was_compared_raise_nothing_and_say_nothing(step_of):
    empty = step_of(1, cells=[(0, 0.0)], metrics={}, standard_error=None, prompts=0)
    assert told([empty] * 30) == []


def test_memory_stays_the_same_over_many_steps():
    watch, sizes = Watch(NO_LIMIT), []
    for record in simulated(Scene(steps=900, prompts=2), 0):
        watch.add(record)
        if record.step in (400, 900):
            sizes.append(len(pickle.dumps(watch)))
    assert sizes[1] <= 1.02 * sizes[0]


@pytest.mark.parametrize("seed", range(3))
def test_advantages_that_go_with_uncertain_rollouts_are_no_learning(seed):
    assert watched(Scene(steps=60, uncertain=0.8, level=1e-2, length=64.0, prompts=4), seed, NO_LIMIT) == []


@pytest.mark.parametrize("factor", [3.0, 10.0])
@pytest.mark.parametrize("seed", range(4))
def test_another_level_is_not_called_weights_that_do_not_arrive(seed, factor):
    kinds = {alarm.kind for alarm in watched(replace(JUMP, factor=factor), seed, NO_LIMIT)}
    assert kinds == {"jump"}


def test_growth_that_no_reward_speaks_for_says_so():
    [alarm] = [a for a in watched(replace(STALE, prefer=0.0), 2, NO_LIMIT) if a.kind == "stale"]
    assert "The trainer does not clearly prefer what was rewarded (z = " in alarm.message
