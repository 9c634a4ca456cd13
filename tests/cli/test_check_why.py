"""`onepolicy check` that fails says why, and ends as it would without."""

import json

import pytest

from onepolicy.records.finding import Diagnosis
from onepolicy.records.verdict import Judgement

STALE = ("--rollout", "fake:m?seed=1", "--trainer", "fake:m", "--max-new-tokens", 24)
"""the rollout engine has other weights than the trainer"""
OLD = ("--weights", "step 0=fake:m?seed=1")
CAUSE = "Cause: the rollout side has the weights of step 0;"


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")


def test_the_answer_stands_right_under_the_verdict(cli, tmp_path):
    ended = cli("check", *STALE, *OLD, "--run", tmp_path / "run")
    assert ended.status == 1
    verdict, answer, empty, first = ended.out.splitlines()[:4]
    assert verdict.startswith("Fail: KL ")
    assert answer.startswith(CAUSE)
    assert "Fix: the rollout side still serves step 0" in answer
    assert empty == ""
    assert first.startswith("pass  same_ids")
    assert ended.out.count(CAUSE) == 1


def test_report_shows_the_same_and_writes_the_page_that_is_kept(cli, tmp_path):
    checked = cli("check", *STALE, *OLD, "--run", tmp_path / "run")
    reported = cli("report", tmp_path / "run", "--html", tmp_path / "page.html")
    assert (reported.status, reported.out) == (checked.status, checked.out)
    page = (tmp_path / "page.html").read_text()
    assert page == (tmp_path / "run" / "judgements" / "default" / "report.html").read_text()
    assert CAUSE in page


def test_a_run_that_was_moved_is_reported_with_its_cause(cli, tmp_path):
    checked = cli("check", *STALE, *OLD, "--run", tmp_path / "run")
    (tmp_path / "run").rename(tmp_path / "moved")
    assert cli("report", tmp_path / "moved").out == checked.out


def test_no_why_says_the_verdict_alone(cli, tmp_path):
    ended = cli("check", *STALE, "--no-why", "--run", tmp_path / "run")
    assert ended.status == 1
    assert ended.out.splitlines()[1] == ""
    assert "trying" not in ended.err
    assert not (tmp_path / "run" / "judgements" / "default" / "findings.json").exists()


def test_what_is_not_found_is_said_in_the_same_place(cli, tmp_path):
    ended = cli("check", *STALE, "--run", tmp_path / "run")
    assert ended.status == 1
    assert ended.out.splitlines()[1].startswith("No cause found")


def test_json_is_the_judgement_alone(cli, tmp_path):
    ended = cli("check", *STALE, *OLD, "--run", tmp_path / "run", "--json")
    assert ended.status == 1
    assert Judgement.model_validate_json(ended.out).status.value == "fail"
    kept = (tmp_path / "run" / "judgements" / "default" / "findings.json").read_text()
    assert Diagnosis.model_validate_json(kept).sentence.startswith(CAUSE)


def test_a_file_is_checked_likewise(cli, tmp_path):
    file = tmp_path / "onepolicy.yaml"
    file.write_text("rollout: fake:m?seed=1\ntrainer: fake:m\nsampling: {max_new_tokens: 24}\n")
    assert cli("check", file, *OLD, "--run", tmp_path / "a").out.splitlines()[1].startswith(CAUSE)
    assert cli("check", file, "--no-why", "--run", tmp_path / "b").out.splitlines()[1] == ""


def test_with_legs_the_answer_stands_under_the_verdict_too(cli, tmp_path):
    pair = ("--rollout", "fake:m?batch_size=4", "--trainer", "fake:m?batch_size=4&temperature=1.2")
    ended = cli("check", *pair, "--legs", "--budget", 1600, "--run", tmp_path / "run")
    assert ended.status == 1
    kept = (tmp_path / "run" / "judgements" / "default" / "findings.json").read_text()
    assert ended.out.splitlines()[1] == Diagnosis.model_validate_json(kept).sentence


def test_an_error_in_the_diagnosis_does_not_hide_the_judgement(cli, tmp_path):
    broken = ("--rollout", "fake:m", "--trainer", "fake:m?offset=1000", "--max-new-tokens", 24)
    ended = cli("check", *broken, "--run", tmp_path / "run")
    assert ended.status == 1
    assert ended.out.startswith("Fail: ")
    assert "the cause was not found out: " in ended.err
    assert "no token has a logprob on both sides" in ended.err


def test_weights_without_a_name_are_refused_before_anything_is_sampled(cli, tmp_path):
    ended = cli("check", *STALE, "--weights", "fake:m", "--run", tmp_path / "run")
    assert ended.status == 2
    assert "names no weights" in ended.err
    assert not (tmp_path / "run").exists()


def test_diagnose_keeps_its_answer_in_the_report_of_the_judgement(cli, tmp_path):
    run, page = tmp_path / "run", tmp_path / "page.html"
    cli("check", *STALE, "--no-why", "--run", run)
    found = json.loads(cli("diagnose", run, *OLD, "--json").out)
    reported = cli("report", run, "--html", page)
    assert (reported.status, reported.out.splitlines()[1]) == (1, found["sentence"])
    assert page.read_text() == (run / "judgements" / "default" / "report.html").read_text()


def test_judging_again_shows_no_earlier_answer(cli, tmp_path):
    cli("check", *STALE, *OLD, "--run", tmp_path / "run")
    assert cli("judge", tmp_path / "run").out.splitlines()[1] == ""
    assert cli("report", tmp_path / "run").out.splitlines()[1] == ""


def test_a_judgement_of_another_name_is_shown_without_the_answer_of_the_first(cli, tmp_path):
    cli("check", *STALE, *OLD, "--run", tmp_path / "run")
    assert cli("judge", tmp_path / "run", "--name", "other").out.splitlines()[1] == ""
    assert cli("report", tmp_path / "run").out.splitlines()[1].startswith(CAUSE)
