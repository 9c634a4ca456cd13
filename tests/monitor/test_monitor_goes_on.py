"""A training that goes on in the same folder, whatever ended it before."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from scripted_watch import Make, Scripted, lines_of, watched

from onepolicy.errors import RunError
from onepolicy.monitor import past as past_module
from onepolicy.monitor.monitor import Monitor
from onepolicy.monitor.state import read_state
from onepolicy.records.verdict import Status


def test_the_same_folder_goes_on(tmp_path: Path, batch_of: Make) -> None:
    watched(tmp_path / "run", batch_of, 8, limits="bf16")
    watch = Scripted({})
    monitor = watched(tmp_path / "run", batch_of, 2, watch=watch, limits="bf16")
    assert [line["step"] for line in lines_of(tmp_path / "run")] == list(range(1, 11))
    assert watch.seen == list(range(1, 11))
    assert monitor.status is Status.PASS
    assert read_state(tmp_path / "run").steps == 10


def test_a_failed_training_does_not_pass_by_going_on(tmp_path: Path, batch_of: Make) -> None:
    watched(tmp_path / "run", batch_of, 3, watch=Scripted({2: "jump"}))
    assert watched(tmp_path / "run", batch_of, 3).status is Status.FAIL


def test_a_training_that_was_killed_does_not_pass_by_going_on(tmp_path: Path, batch_of: Make) -> None:
    monitor = Monitor(tmp_path / "run")
    for step in range(3):
        monitor.update(**batch_of(step))
        monitor.step()
    _kill(monitor)
    after = watched(tmp_path / "run", batch_of, 2)
    assert after.status is Status.UNKNOWN
    assert "without close()" in after.why


def _kill(monitor: Monitor) -> None:
    folder = monitor._recorder._folder
    assert folder is not None
    folder.close()  # as the system does when a process dies


def test_a_training_that_does_its_lost_steps_again_passes(tmp_path: Path, batch_of: Make) -> None:
    monitor = Monitor(tmp_path / "run", limits="bf16")
    for step in range(9):
        monitor.update(**batch_of(step))
        monitor.step(step)
    _kill(monitor)  # step 8 was never looked at
    with Monitor(tmp_path / "run", limits="bf16") as after:
        for step in (7, 8, 9):
            after.update(**batch_of(step))
            after.step(step)
    assert [line["step"] for line in lines_of(tmp_path / "run")] == [*range(8), 7, 8, 9]
    assert after.status is Status.PASS
    assert read_state(tmp_path / "run").steps == 11


def test_what_was_found_outlives_a_process_that_is_killed_at_once(tmp_path: Path, batch_of: Make) -> None:
    watched(tmp_path / "run", batch_of, 3, watch=Scripted({2: "jump"}))
    _kill(Monitor(tmp_path / "run"))
    with Monitor(tmp_path / "run") as monitor:
        monitor.update(**batch_of(0))
        monitor.step(4)
    assert monitor.status is Status.FAIL


def test_a_failure_is_written_down_when_it_happens(tmp_path: Path, batch_of: Make) -> None:
    monitor = Monitor(tmp_path / "run")
    monitor.update(**batch_of(0))
    monitor.update(**batch_of(0) | {"sampled": torch.ones(8, 15)})
    monitor.step()
    monitor.step()
    assert read_state(tmp_path / "run").failures.keys() == {"read a micro-batch"}
    assert read_state(tmp_path / "run").status == "running"


def test_what_a_killed_training_had_found_stays_found(tmp_path: Path, batch_of: Make) -> None:
    monitor = Monitor(tmp_path / "run", watch=Scripted({2: "jump"}))
    for step in range(1, 5):
        monitor.update(**batch_of(step))
        monitor.step(step)
    _kill(monitor)
    (tmp_path / "run" / "monitor.json").write_text(
        read_state(tmp_path / "run").model_copy(update={"alarms": {}}).model_dump_json()
    )
    with Monitor(tmp_path / "run", watch=Scripted({})) as after:
        after.update(**batch_of(4))
        after.step(4)
    assert after.status is Status.FAIL


def test_a_failed_training_stays_failed_without_its_state(tmp_path: Path, batch_of: Make) -> None:
    watched(tmp_path / "run", batch_of, 3, watch=Scripted({2: "jump"}))
    (tmp_path / "run" / "monitor.json").unlink()
    assert watched(tmp_path / "run", batch_of, 9, limits="bf16").status is Status.FAIL


def test_a_training_whose_state_is_gone_does_not_pass(tmp_path: Path, batch_of: Make) -> None:
    watched(tmp_path / "run", batch_of, 3, limits="bf16")
    (tmp_path / "run" / "monitor.json").unlink()
    after = watched(tmp_path / "run", batch_of, 9, limits="bf16")
    assert after.status is Status.UNKNOWN
    assert "monitor.json is absent" in after.why


def test_a_training_whose_steps_were_removed_does_not_pass(tmp_path: Path, batch_of: Make) -> None:
    watched(tmp_path / "run", batch_of, 10, limits="bf16")
    path = tmp_path / "run" / "steps.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:4]))
    after = watched(tmp_path / "run", batch_of, 9, limits="bf16")
    assert after.status is Status.UNKNOWN
    assert "has 4 steps" in after.why


def test_alarms_from_long_ago_count_when_a_training_goes_on(
    tmp_path: Path, batch_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(past_module, "HISTORY", 2)
    watched(tmp_path / "run", batch_of, 9, watch=Scripted({1: "limit"}))
    (tmp_path / "run" / "monitor.json").unlink()
    assert watched(tmp_path / "run", batch_of, 2).status is Status.FAIL


def test_a_killed_training_that_is_only_closed_does_not_pass(tmp_path: Path, batch_of: Make) -> None:
    monitor = Monitor(tmp_path / "run", limits="bf16")
    for step in range(12):
        monitor.update(**batch_of(step))
        monitor.step()
    _kill(monitor)
    assert watched(tmp_path / "run", batch_of, 0, limits="bf16").status is Status.UNKNOWN


@pytest.mark.parametrize(("cut", "kept", "word"), [(40, 2, "dropped"), (1, 3, "completed")])
def test_a_last_line_that_was_cut_off_is_mended_and_said(
    tmp_path: Path, batch_of: Make, caplog: pytest.LogCaptureFixture, cut: int, kept: int, word: str
) -> None:
    watched(tmp_path / "run", batch_of, 3)
    path = tmp_path / "run" / "steps.jsonl"
    path.write_bytes(path.read_bytes()[:-cut])
    watched(tmp_path / "run", batch_of, 1)
    assert word in caplog.text
    assert [line["step"] for line in lines_of(tmp_path / "run")] == [*range(1, kept + 1), kept + 1]


def test_a_damaged_line_is_an_error_that_names_the_file(tmp_path: Path, batch_of: Make) -> None:
    watched(tmp_path / "run", batch_of, 2)
    path = tmp_path / "run" / "steps.jsonl"
    path.write_bytes(b"{}\n" + path.read_bytes())
    with pytest.raises(RunError, match="no step"):
        Monitor(tmp_path / "run")


def test_a_link_that_leads_out_of_the_folder_is_refused(tmp_path: Path, batch_of: Make) -> None:
    watched(tmp_path / "run", batch_of, 1)
    elsewhere = tmp_path / "elsewhere"
    (tmp_path / "run" / "steps.jsonl").rename(elsewhere)
    (tmp_path / "run" / "steps.jsonl").symlink_to(elsewhere)
    with pytest.raises(RunError, match="link"):
        Monitor(tmp_path / "run")


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match="no run of onepolicy"):
        Monitor(tmp_path / "run")


def test_two_processes_do_not_write_one_folder(tmp_path: Path) -> None:
    with Monitor(tmp_path / "run"), pytest.raises(RunError, match="another process"):
        Monitor(tmp_path / "run")
