"""A stored judgement, and a run that may have become another one under it."""

import json
import shutil

import pytest

import onepolicy
from onepolicy.judgement.decide import decide, sentence
from onepolicy.judgement.limits import Limits, Waiver
from onepolicy.records.run import Run
from onepolicy.records.verdict import Status
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


@pytest.fixture(scope="module")
def failed(tmp_path_factory):
    path = tmp_path_factory.mktemp("judged") / "run"
    onepolicy.check(rollout="fake:m", trainer="fake:m?noise=0.5", run=path, **SMALL)
    return Run.open(path)


@pytest.mark.parametrize(
    "edited",
    [
        lambda verdicts: [v.model_copy(update={"status": Status.PASS}) for v in verdicts],
        lambda verdicts: [v.model_copy(update={"required": v.status is Status.PASS}) for v in verdicts],
        lambda verdicts: [v for v in verdicts if v.status is Status.PASS],
    ],
    ids=["another status", "not required", "left out"],
)
def test_answers_that_the_content_does_not_give_are_of_no_content(failed, edited):
    judgement = stored_judgement(failed.path, "default")
    assert is_of_content(judgement, failed), "a fail is one of its content too"
    verdicts = tuple(edited(judgement.verdicts))
    changes = {"verdicts": verdicts, "status": decide(verdicts), "sentence": sentence(verdicts)}
    assert changes["status"] is Status.PASS
    assert not is_of_content(judgement.model_copy(update=changes), failed)


def test_to_judge_again_changes_no_file(run):
    def files():
        return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in run.path.rglob("*") if path.is_file()}

    before = files()
    assert is_of_content(stored_judgement(run.path, "default"), run)
    assert files() == before


def test_a_waiver_that_ended_since_held_when_it_was_judged(tmp_path):
    waivers = [Waiver(check="mean_kl", reason="known", until="2999-01-01")]
    limits = Limits(max_abs_d=100, worst_rollout_kl=100, outlier_rate=1, waivers=waivers)
    onepolicy.check(rollout="fake:m", trainer="fake:m?noise=0.5", run=tmp_path / "run", limits=limits, **SMALL)
    judgement = stored_judgement(tmp_path / "run", "default")
    file = tmp_path / "run" / "judgements" / "default" / "limits.json"
    content = json.loads(file.read_text())
    content["waivers"][0]["until"] = "2020-01-01"
    file.write_text(json.dumps(content))
    assert is_of_content(judgement, Run.open(tmp_path / "run"))
