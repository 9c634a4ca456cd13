"""Disks that are full and folders that cannot be written: real ones, mounted where that is allowed."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from onepolicy.records.run import Run


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Callable[[str], Path]]:
    """Mount a disk of a given size; skips where this is not allowed."""
    where = tmp_path / "disk"
    where.mkdir()

    def mount(size: str) -> Path:
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(where)]
        if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
            pytest.skip("only root may mount a disk, and not everywhere")
        return where

    yield mount
    if os.path.ismount(where):
        subprocess.run(["umount", str(where)], check=True)


def test_a_full_disk_is_an_error_that_says_so_and_the_run_resumes_when_there_is_room(small_disk, cli):
    disk = small_disk("180k")
    command = ("record", "--engine", "fake:m?batch_size=4", "--run", disk / "run", "--statistics")
    ended = cli(*command)
    assert ended.status == 2
    assert "the disk is full. What was finished before is kept" in ended.err
    assert "Traceback" not in ended.err
    assert not list(disk.rglob("*.tmp"))
    kept = {path: path.read_bytes() for path in (disk / "run" / "rollouts").glob("part-*.parquet")}
    assert kept
    subprocess.run(["mount", "-o", "remount,size=8m", str(disk)], check=True)
    assert cli(*command, "--resume").status == 0
    assert Run.open(disk / "run").manifest.status == "complete"
    assert all(path.read_bytes() == content for path, content in kept.items())


def test_a_disk_too_full_for_the_judgement_is_an_error_and_no_pass(small_disk, cli):
    disk = small_disk("2m")
    assert cli("check", "--rollout", "fake:m", "--trainer", "fake:m", "--run", disk / "run").status == 0
    (disk / "ballast").write_bytes(b"0" * (os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize))
    ended = cli("judge", disk / "run", "--name", "again")
    assert ended.status == 2
    assert "the disk is full" in ended.err
    assert ended.out == ""


def test_a_folder_that_is_read_only_is_an_error_that_names_it(small_disk, cli):
    disk = small_disk("8m")
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    ended = cli("record", "--engine", "fake:m", "--run", disk / "run")
    assert ended.status == 2
    assert f"{disk / 'run'}" in ended.err
    assert "Read-only file system" in ended.err


def test_a_folder_without_the_right_to_write_is_an_error(tmp_path, cli):
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    tmp_path.chmod(0o500)
    ended = cli("record", "--engine", "fake:m", "--run", tmp_path / "run")
    tmp_path.chmod(0o700)
    assert ended.status == 2
    assert "Permission denied" in ended.err


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (PermissionError(13, "Permission denied", "/x/list"), "/x/list: Permission denied. Check that it is there"),
        (PermissionError(13, "Permission denied", b"/x/list"), "/x/list: Permission denied."),
        (OSError(28, "No space left on device"), "the result could not be written (No space left on device)"),
        (OSError("odd"), "the result could not be written (odd)"),
    ],
)
def test_an_error_of_the_system_names_its_file_or_else_stdout(cli, monkeypatch, error, said):
    def fails(*_, **__):
        raise error

    monkeypatch.setattr("onepolicy.cli.app.app.main", fails)
    ended = cli("probe", "fake:m")
    assert ended.status == 2
    assert said in ended.err
    assert "Traceback" not in ended.err
