"""`onepolicy timeline` on a monitor's run and on recorded files."""

import json

import pytest

from onepolicy.judgement.limits import Limits
from onepolicy.monitor.state import MonitorState, write_state
from steps import Scene, simulated


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("monitored")
    records = simulated(Scene(steps=60), 1)
    (path / "steps.jsonl").write_text("".join(f"{record.model_dump_json()}\n" for record in records))
    limits = Limits(mean_kl=4e-3).model_dump_json()
    write_state(path, MonitorState(status="pass", policy="warn", limits=limits, steps=60))
    return path


def test_a_run_is_shown_with_its_exit_status(cli, run):
    ended = cli("timeline", run)
    assert ended.status == 0
    assert ended.out.startswith("Pass: mean k3 of the trainer's own weights")


def test_json_is_the_whole_timeline(cli, run):
    ended = cli("timeline", run, "--json")
    found = json.loads(ended.out)
    assert (found["status"], len(found["records"]), found["mean_kl_limit"]) == ("pass", 60, 4e-3)


def test_a_tighter_limit_fails(cli, run):
    assert cli("timeline", run, "--mean-kl", "1e-4").status == 1
    assert cli("timeline", run, "--limits", "bf16").status == 0


def test_a_page_is_written(cli, run, tmp_path):
    page = tmp_path / "page.html"
    assert cli("timeline", run, "--html", page).status == 0
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


@pytest.mark.parametrize("arguments", [["nowhere"], ["--limits", "none", "nowhere"], []])
def test_what_cannot_be_read_ends_with_2_and_a_sentence(cli, tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    ended = cli("timeline", *arguments)
    assert ended.status == 2
    assert "Traceback" not in ended.err


def test_a_damaged_file_ends_with_2_and_names_the_line(cli, tmp_path):
    (tmp_path / "steps.jsonl").write_text("no step\n")
    ended = cli("timeline", tmp_path)
    assert ended.status == 2
    assert "line 1 is no step" in ended.err


def test_the_file_of_steps_stands_for_its_run(cli, run):
    assert cli("timeline", run / "steps.jsonl").out == cli("timeline", run).out
