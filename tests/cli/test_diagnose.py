"""`onepolicy diagnose`."""

import json
import shlex
from pathlib import Path

import click
import pytest

from onepolicy.cli.app import app
from onepolicy.cli.diagnose import diagnose, exit_status
from onepolicy.diagnosis.cause import Cause
from onepolicy.diagnosis.decide import BETTER, MOST_INEXACT, MOST_RESIDUAL, MOST_STRETCH
from onepolicy.diagnosis.likelihood import FOLDS, IMPOSSIBLE
from onepolicy.diagnosis.noise import CLIP
from onepolicy.records.finding import Diagnosis, Finding, Outcome
from onepolicy.workflow.diagnose_tokens import MOST_TOKENS
from onepolicy.workflow.experiments import PROMPTS

ALIKE = ("--rollout", "fake:m", "--trainer", "fake:m")
STALE = ("--rollout", "fake:m?seed=1", "--trainer", "fake:m")
"""the rollout engine has other weights than the trainer"""
PAGE = (Path(__file__).parents[2] / "docs" / "diagnose.md").read_text(encoding="utf-8")
OLD = "step 0=fake:m?seed=1"


@pytest.fixture
def run(cli, tmp_path):
    def checked(*pair):
        cli("check", *pair, "--max-new-tokens", 24, "--run", tmp_path / "run")
        return tmp_path / "run"

    return checked


def test_the_weights_that_a_person_names_are_found_and_end_with_0(cli, run):
    ended = cli("diagnose", run(*STALE), "--weights", OLD)
    assert ended.status == 0
    assert ended.out.startswith("Cause: the rollout side has the weights of step 0; corrected, mean |d| is 0 nats")
    assert "16 rollouts read again" in ended.out


def test_of_several_weights_the_right_ones_are_found(cli, run):
    others = ("--weights", "step 1=fake:m?seed=2", "--weights", "step 2=fake:m?seed=3")
    found = json.loads(cli("diagnose", run(*STALE), *others, "--weights", OLD, "--json").out)
    assert found["sentence"].startswith("Cause: the rollout side has the weights of step 0;")


def test_without_experiments_no_cause_is_found_and_it_ends_with_3(cli, run):
    ended = cli("diagnose", run(*STALE), "--weights", OLD, "--no-experiments")
    assert ended.status == 3
    assert ended.out.startswith("No cause found")
    assert "not tested" in ended.out
    assert "trying" not in ended.err


def test_two_sides_that_agree_have_nothing_to_explain_and_end_with_0(cli, run):
    ended = cli("diagnose", run(*ALIKE))
    assert ended.status == 0
    assert ended.out.startswith("Nothing to explain")


def test_json_is_the_diagnosis(cli, run):
    ended = cli("diagnose", run(*STALE), "--json")
    assert ended.status == 3
    assert Diagnosis.model_validate_json(ended.out).trainer_reading == "trainer"


def test_a_measured_floor_is_the_noise(cli, run, tmp_path):
    path, floor = run(*STALE), tmp_path / "floor.json"
    noisy = "fake:m?batch_noise=1e-4&batch_size=4"
    assert cli("calibrate", "--engine", noisy, "--budget", 500, "--run", tmp_path / "f", "--output", floor).status == 0
    found = json.loads(cli("diagnose", path, "--floor", floor, "--json", "--no-experiments").out)
    assert found["noise_source"] == "the measured floor of fake"


def test_it_is_wide_80_columns(cli, run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    ended = cli("diagnose", run(*STALE), "--weights", OLD)
    assert max(map(len, ended.out.splitlines())) <= 80


@pytest.mark.parametrize("given", ["fake:m", "=fake:m", "fake:m?seed=1", " =fake:m"])
def test_weights_without_a_name_are_refused(cli, run, given):
    ended = cli("diagnose", run(*ALIKE), "--weights", given)
    assert ended.status == 2
    assert "names no weights" in ended.err


def test_two_weights_of_one_name_are_refused(cli, run):
    ended = cli("diagnose", run(*ALIKE), "--weights", OLD, "--weights", OLD)
    assert ended.status == 2
    assert "names 'step 0' twice" in ended.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--trainer", "nobody"], "nobody"),
        (["--floor", "nowhere.json"], "cannot be read"),
    ],
)
def test_what_is_not_there_ends_with_2_and_a_sentence(cli, run, arguments, said):
    ended = cli("diagnose", run(*ALIKE), *arguments)
    assert ended.status == 2
    assert said in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.parametrize(
    ("outcomes", "excess", "status"),
    [
        ((Outcome.CAUSE, Outcome.RULED_OUT), 0.2, 0),
        ((Outcome.ONE_OF, Outcome.ONE_OF), 0.2, 3),
        ((Outcome.PARTLY,), 0.2, 3),
        ((Outcome.RULED_OUT, Outcome.UNTESTED), 0.2, 3),
        ((Outcome.RULED_OUT, Outcome.UNTESTED), 0.0001, 0),
        ((), 0.2, 3),
    ],
)
def test_only_a_cause_or_nothing_to_explain_ends_with_0(outcomes, excess, status):
    found = Diagnosis(
        run="r",
        rollout_reading="rollout",
        trainer_reading="trainer",
        sentence="so it is",
        tokens=10,
        prompts=5,
        mean_abs_d=0.01 + excess,
        noise=0.01,
        noise_source="planted",
        excess=excess,
        excess_error=0.001,
        differs=excess > 0.01,
        findings=tuple(Finding(cause=f"c{i}", outcome=one) for i, one in enumerate(outcomes)),
    )
    assert exit_status(found) == status


def test_the_page_has_the_constants_of_the_code():
    text = " ".join(PAGE.split())
    assert f"min(|d|, {CLIP:g})" in text
    assert f"M0 > {MOST_RESIDUAL:g} N If it is less than {BETTER:g} standard errors" in text
    assert f"at most {MOST_STRETCH:g} times the noise, or a tenth of the difference" in text
    assert MOST_INEXACT == 0.1
    assert f"counts as d = {IMPOSSIBLE:g} nats" in text
    assert f"about {MOST_TOKENS:,} tokens" in text
    assert f"one rollout of each of {PROMPTS} prompts" in text
    assert (FOLDS, "dealt into five folds" in text) == (5, True)


def test_the_page_names_every_outcome_and_the_fields_of_a_cause():
    assert [one.value for one in Outcome if f"| `{one.value}` |" not in PAGE] == []
    assert [name for name in Cause.__dataclass_fields__ if f"| `{name}` |" not in PAGE] == ["name", "about"]


def test_the_commands_of_the_page_are_commands():
    lines = [line.removeprefix("$ onepolicy diagnose ") for line in PAGE.splitlines() if line.startswith("$ ")]
    assert len(lines) == 3
    for line in lines:
        assert isinstance(diagnose, click.Command)
        diagnose.make_context("diagnose", shlex.split(line), **app.context_settings)
