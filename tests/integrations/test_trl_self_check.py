"""A question every so many steps, asked by a trainer's own callbacks."""

import logging
from types import SimpleNamespace

import pytest
from transformers import TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import CallbackHandler

from onepolicy.behaviour.result import Behaviour, BehaviourSide
from onepolicy.errors import EngineError
from onepolicy.integrations.trl.self_check import attach_self_check
from onepolicy.records.verdict import Status

SIDE = BehaviourSide(run="", engine="", protocol={}, rollouts=0)


def answer(status):
    return Behaviour(
        a=SIDE, b=SIDE, prompts=0, status=status, sentence=f"It is {status.value}", verdicts=(), metrics=()
    )


def logged(caplog):
    ours = [record for record in caplog.records if record.name == "onepolicy.self_check"]
    return [(record.levelname, record.getMessage()) for record in ours]


@pytest.fixture
def steps():
    """Run a check in four steps, with a checkpoint in every second one, as Transformers' own handler calls it."""

    def run(check, *, when="step", first_rank=True):
        handler = CallbackHandler([], None, None, None, None)
        attach_self_check(SimpleNamespace(add_callback=handler.add_callback), check, when=when)
        state, control = TrainerState(is_world_process_zero=first_rank), TrainerControl()
        arguments = TrainingArguments(output_dir="unused", report_to=[], use_cpu=True)
        for state.global_step in range(1, 5):
            handler.on_step_end(arguments, state, control)
            if state.global_step % 2 == 0:
                handler.on_save(arguments, state, control)

    return run


def test_it_is_asked_after_each_step_or_after_each_checkpoint(steps):
    asked = []
    steps(asked.append)
    assert asked == [1, 2, 3, 4]
    asked.clear()
    steps(asked.append, when="save")
    assert asked == [2, 4]


def test_the_other_ranks_do_not_ask(steps):
    asked = []
    steps(asked.append, first_rank=False)
    assert asked == []


def test_an_alarm_is_logged_as_an_error_and_the_training_goes_on(steps, caplog):
    found = {1: answer(Status.PASS), 2: None, 3: answer(Status.FAIL), 4: answer(Status.UNKNOWN)}
    with caplog.at_level(logging.INFO, "onepolicy.self_check"):
        steps(found.__getitem__)
    assert logged(caplog) == [
        ("INFO", "step 1: It is pass"),
        ("ERROR", "step 3: It is fail"),
        ("WARNING", "step 4: It is unknown"),
    ]


def test_an_engine_that_is_away_is_a_warning(steps, caplog):
    def check(step):
        raise EngineError("no answer")

    steps(check)
    assert logged(caplog)[0] == ("WARNING", "step 1: the self-check could not run: no answer")
