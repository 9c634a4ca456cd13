"""`onepolicy history`."""

import json
import shutil
from pathlib import Path

import pytest

from onepolicy.records.past import History


@pytest.fixture
def folder(cli, tmp_path, monkeypatch) -> Path:
    """Two green runs and a red one, by the gate."""
    monkeypatch.chdir(tmp_path)
    lines = [{"id": f"s{i:02}", "prompt": f"{i} of many: ", "completion": f"the rain in spain {i}"} for i in range(14)]
    Path("fixed.jsonl").write_text("\n".join(map(json.dumps, lines)))
    for noise in (0.003, 0.003, 0.5):
        asked = {"rollout": "fake:m", "trainer": f"fake:m?noise={noise}", "suite": "fixed.jsonl"}
        Path("onepolicy.yaml").write_text(json.dumps(asked))
        cli("gate", "onepolicy.yaml")
    return tmp_path / "runs"


def test_the_table_says_when_what_and_what_changed_in_80_columns(cli, folder, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    ended = cli("history", "runs")
    assert ended.status == 1
    assert ended.out.startswith("Fail: mean k3")
    assert ended.out.count("  pass  ") == 2
    assert "changed: configuration: trainer option noise 0.003 -> 0.5" in ended.out
    assert "Look first at configuration: trainer option noise" in " ".join(ended.out.split())
    assert max(map(len, ended.out.splitlines())) <= 80


def test_the_json_is_the_history(cli, folder):
    found = History.model_validate_json(cli("history", "runs", "--json").out)
    assert (len(found.rows), found.against.same_ids) == (3, 14)


def test_the_page_is_written_beside_the_runs_and_never_into_one(cli, folder):
    assert cli("history", "runs", "--html", "runs/history.html").status == 1
    assert "Look first at configuration" in Path("runs/history.html").read_text()
    (first, *_) = sorted(path for path in folder.iterdir() if path.is_dir())
    ended = cli("history", "runs", "--html", first / "page.html")
    assert (ended.status, (first / "page.html").exists()) == (2, False)


def test_a_damaged_run_is_named_and_is_no_pass(cli, folder):
    newest = max(path for path in folder.iterdir() if path.is_dir())
    (newest / "manifest.json").write_text("{")
    ended = cli("history", "runs")
    assert ended.status == 3
    assert "is not JSON" in ended.out
    assert newest.name in ended.out


def test_a_folder_without_a_run_ends_with_2(cli, folder):
    shutil.rmtree(folder)
    assert cli("history", "runs").status == 2
    folder.mkdir()
    assert cli("history", "runs").status == 2
