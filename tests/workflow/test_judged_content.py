"""A stored judgement, and a run that may have become another one under it."""

import shutil

import pytest

import onepolicy
from onepolicy.records.run import Run
from onepolicy.workflow.judge import stored_judgement
from onepolicy.workflow.judged_content import is_of_content

SMALL = {"suite": "quick", "protocol": onepolicy.SamplingProtocol(max_new_tokens=8)}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("judged") / "run"
    onepolicy.check(rollout="fake:m", trainer="fake:m?noise=0.003", run=path, **SMALL)
    return Run.open(path)


def test_a_judgement_is_of_the_run_that_it_was_made_of(run):
    assert is_of_content(stored_judgement(run.path, "default"), run)


def test_a_number_that_another_machine_rounds_otherwise_is_the_same_and_a_changed_one_is_not(run):
    judgement = stored_judgement(run.path, "default")
    for factor, same in ((1 + 1e-9, True), (1.001, False)):
        moved = {name: value * factor for name, value in judgement.metrics.items()}
        assert is_of_content(judgement.model_copy(update={"metrics": moved}), run) is same


def test_another_reading_under_the_same_name_is_another_content(run, tmp_path):
    other = onepolicy.check(rollout="fake:m", trainer="fake:m?noise=0.01", run=tmp_path / "other", **SMALL)
    copy = shutil.copytree(run.path, tmp_path / "run")
    shutil.rmtree(copy / "readings" / "trainer")
    shutil.copytree(tmp_path / "other" / "readings" / "trainer", copy / "readings" / "trainer")
    assert not is_of_content(stored_judgement(run.path, "default"), Run.open(copy))
    assert is_of_content(other, Run.open(copy)), "the same rollouts with its own reading"


def test_a_judgement_without_numbers_or_of_readings_that_are_gone_is_of_no_content(run):
    judgement = stored_judgement(run.path, "default")
    assert not is_of_content(judgement.model_copy(update={"metrics": {}}), run)
    assert not is_of_content(judgement.model_copy(update={"trainer_reading": "gone"}), run)
