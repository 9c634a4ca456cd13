"""`reference.json` as somebody else left it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from onepolicy.errors import RunError
from onepolicy.monitor.reference.record import read_reference

ALARM = {"kind": "moved", "step": 2, "message": "it moved"}


def record(folder: Path, **changes: Any) -> None:
    sound = {"status": "pass", "policy": "warn", "every": 5, "digest": "0" * 64, "checks": 3, "last_step": 3}
    (folder / "reference.json").write_text(json.dumps(sound | changes))


@pytest.mark.parametrize(
    "changes", [{}, {"status": "running", "checks": 0}, {"status": "fail", "alarms": [ALARM]}], ids=str
)
def test_what_a_guard_writes_is_read(tmp_path, changes):
    record(tmp_path, **changes)
    assert read_reference(tmp_path) is not None


@pytest.mark.parametrize(
    "damage",
    [
        {"checks": -3},
        {"checks": "3"},
        {"checks": 0},
        {"digest": ""},
        {"digest": "beef"},
        {"every": 0},
        {"policy": "stop"},
        {"last_step": None},
        {"alarms": [ALARM]},
        {"failures": {"look at the reference": "no memory"}},
        {"status": "fail"},
        {"status": "unknown"},
    ],
    ids=str,
)
def test_a_record_that_contradicts_itself_is_damaged_and_what_to_do_is_said(tmp_path, damage):
    record(tmp_path, **damage)
    with pytest.raises(RunError, match=r"The file is damaged. Move it away to begin anew, or give the guard another"):
        read_reference(tmp_path)


def test_a_folder_in_its_place_is_said_to_be_none(tmp_path):
    (tmp_path / "reference.json").mkdir()
    with pytest.raises(RunError, match=r"is no file(.*)Move it away"):
        read_reference(tmp_path)
