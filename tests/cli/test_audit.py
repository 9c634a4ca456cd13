"""`onepolicy audit`."""

import json
import shutil

import pytest

from onepolicy.workflow.audit import Audit


@pytest.fixture
def run(cli, tmp_path):
    path = tmp_path / "run"
    options = ("--max-new-tokens", 32, "--samples-per-prompt", 2, "--top", 0)
    assert cli("record", "--engine", "fake:m", *options, "--run", path).status == 0
    return path


def test_a_healthy_run_ends_with_0_and_shows_every_check_in_80_columns(cli, run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    ended = cli("audit", run)
    assert ended.status == 0
    assert ended.out.startswith("Pass: nothing odd in the lengths, stops and seeds of 64 rollouts")
    assert " ".join(ended.out.split("\n\n")[0].split()).endswith("Not checked: stop_strings.")
    assert max(map(len, ended.out.splitlines())) <= 80
    assert ended.err.startswith("auditing: 64 rollouts")


def test_a_stop_string_that_was_passed_over_ends_with_1_and_is_in_the_json(cli, run):
    ended = cli("audit", run, "--stop", "th", "--stop", "zzz", "--json")
    assert ended.status == 1
    found = Audit.model_validate_json(ended.out)
    assert found.sentence.startswith("Fail: ")
    verdict = next(v for v in json.loads(ended.out)["verdicts"] if v["check"] == "stop_strings")
    assert (verdict["status"], len(verdict["evidence"])) == ("fail", verdict["value"])


def test_what_cannot_be_audited_ends_with_2(cli, run, tmp_path):
    for options, message in (
        ((tmp_path / "nothing",), "manifest.json"),
        ((run, "--stop", ""), "empty --stop"),
        ((run, "--end", -1), "not in the range"),
        ((run, "--max-new-tokens", 0), "not in the range"),
    ):
        ended = cli("audit", *options)
        assert (ended.status, ended.out) == (2, "")
        assert message in ended.err


def test_the_end_that_a_person_names_is_the_one_that_counts(cli, run):
    assert cli("audit", run, "--end", 258).status == 0
    ended = cli("audit", run, "--end", ord("e"))
    assert ended.status == 1
    assert "tokens follow an end token (id 101)" in " ".join(ended.out.split())


def test_what_was_not_checked_is_named_where_it_passes(cli, run):
    shutil.rmtree(run / "spans")
    ended = cli("audit", run)
    assert ended.status == 0
    assert "Not checked: one_protocol, finish_reason, forced_end" in " ".join(ended.out.split())
