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


@pytest.fixture
def files(tmp_path):
    """A folder of a file, a link to that folder, and a link in it to a file elsewhere."""
    folder = tmp_path / "dumps"
    folder.mkdir()
    (folder / "step_1.jsonl").write_text("not to be changed\n")
    (tmp_path / "elsewhere.jsonl").write_text("not to be changed\n")
    (folder / "step_2.jsonl").symlink_to(tmp_path / "elsewhere.jsonl")
    (tmp_path / "link").symlink_to(folder)
    (tmp_path / "hard.jsonl").hardlink_to(folder / "step_1.jsonl")
    return tmp_path


@pytest.mark.parametrize(
    ("given", "page"),
    [
        ("dumps/step_1.jsonl", "dumps/step_1.jsonl"),
        ("dumps/step_1.jsonl", "link/step_1.jsonl"),
        ("dumps/step_1.jsonl", "dumps/../dumps/step_1.jsonl"),
        ("dumps/step_1.jsonl", "hard.jsonl"),
        ("link/step_1.jsonl", "dumps/step_1.jsonl"),
        ("dumps/step_*.jsonl", "dumps/step_1.jsonl"),
        ("dumps", "dumps/page.html"),
        ("dumps", "link/step_1.jsonl"),
        ("link", "dumps/page.html"),
        ("dumps", "elsewhere.jsonl"),
    ],
)
def test_a_page_is_never_written_over_what_is_read(cli, files, monkeypatch, given, page):
    monkeypatch.chdir(files)
    ended = cli("timeline", given, "--html", page)
    assert ended.status == 2
    assert "would be changed" in ended.err
    assert (files / "dumps" / "step_1.jsonl").read_text() == "not to be changed\n"


@pytest.mark.parametrize("page", ["steps.jsonl", "monitor.json", "page.html"])
def test_a_page_is_never_written_into_a_monitors_run(cli, run, page):
    before = sorted((file.name, file.read_bytes()) for file in run.iterdir())
    for given in (run, run / "steps.jsonl"):
        assert cli("timeline", given, "--html", run / page).status == 2
    assert sorted((file.name, file.read_bytes()) for file in run.iterdir()) == before
