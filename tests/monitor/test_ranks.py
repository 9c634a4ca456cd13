"""Two processes that train together, and one that has all of their rollouts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from onepolicy.monitor.monitor import Monitor
from onepolicy.records.run import Run

HERE = Path(__file__).parent
SECONDS = 120


def _ranks(folder: Path, mode: str) -> list[subprocess.CompletedProcess[str]]:
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo"}
    started = [
        subprocess.Popen(
            [sys.executable, str(HERE / "rank.py"), str(folder), str(rank), "2", mode],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(2)
    ]
    try:
        ended = [(process, *process.communicate(timeout=SECONDS)) for process in started]
    finally:
        for process in started:
            process.kill()
    return [subprocess.CompletedProcess(p.args, p.returncode, out, err) for p, out, err in ended]


def _lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "steps.jsonl").read_text().splitlines()]


def test_two_ranks_say_what_one_process_says_that_has_all_rollouts(tmp_path: Path) -> None:
    one, other = _ranks(tmp_path, "all")
    assert one.returncode == other.returncode == 0, one.stderr + other.stderr
    sys.path.insert(0, str(HERE))
    from rank import STEPS, AtStep3, rows_of  # noqa: PLC0415 - the script that the ranks run

    with Monitor(tmp_path / "alone", policy="mask", limits="bf16", watch=AtStep3()) as monitor:
        for step in range(STEPS):
            monitor.update(**rows_of(step))
            monitor.step()
    found, wanted = _lines(tmp_path / "run"), _lines(tmp_path / "alone")
    assert len(found) == len(wanted) == STEPS
    for line, alone in zip(found, wanted, strict=True):
        for key in line.keys() - {"time", "metrics", "alarms", "by_lag", "by_confidence", "advantage"}:
            assert line[key] == (pytest.approx(alone[key], rel=1e-9) if isinstance(alone[key], float) else alone[key])
        assert line["metrics"] == pytest.approx(alone["metrics"], rel=1e-9)
        assert line["advantage"] == pytest.approx(alone["advantage"], rel=1e-9)
        for cells in ("by_lag", "by_confidence"):
            for cell, other_cell in zip(line[cells], alone[cells], strict=True):
                assert cell == pytest.approx(other_cell, rel=1e-9)
    assert found[0]["masked_rollouts"] == 2
    # the worst rollout, row 5, was on the second rank, and the first writes it
    kept = [r for r in Run.open(tmp_path / "run").rollouts() if r.tags["kept"] == "alarm"]
    assert {int(r.token_ids[0]) for r in kept} == {0, 1, 2, 3, 4, 5}


def test_what_one_rank_handed_over_before_close_is_a_step_of_all(tmp_path: Path) -> None:
    for ended in _ranks(tmp_path, "left"):
        assert ended.returncode == 0, ended.stderr
    lines = _lines(tmp_path / "run")
    assert [(line["step"], line["rollouts"]) for line in lines] == [(1, 6), (2, 6), (3, 6), (4, 3)]


def test_halt_ends_both_ranks(tmp_path: Path) -> None:
    for rank, ended in enumerate(_ranks(tmp_path, "halt")):
        assert ended.returncode == 1, ended.stderr
        assert "training halted" in ended.stderr
        assert "planted" in ended.stderr
        assert f"rank {rank} step 2" in ended.stdout
        assert f"rank {rank} step 3" not in ended.stdout
    assert json.loads((tmp_path / "run" / "monitor.json").read_text())["status"] == "fail"


def test_a_folder_that_cannot_be_used_is_an_error_on_every_rank(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    for ended in _ranks(tmp_path, "all"):
        assert ended.returncode == 1
        assert "RunError" in ended.stderr
        assert "no run of onepolicy" in ended.stderr


def test_a_failure_on_one_rank_is_known_to_all_and_a_dead_rank_is_torchs_error(tmp_path: Path) -> None:
    one, other = _ranks(tmp_path, "fail")
    assert "could not read a micro-batch" in other.stderr
    assert "it failed on 1 ranks" in one.stderr
    assert other.returncode == 0
    assert one.returncode == 1
    assert "RuntimeError" in one.stderr or "DistBackendError" in one.stderr
    assert json.loads((tmp_path / "run" / "monitor.json").read_text())["status"] != "pass"
