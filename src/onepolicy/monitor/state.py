"""`monitor.json`: whether a monitor has ended, how, and what it saw. Reading it needs no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from onepolicy.records.files import write_text_atomically
from onepolicy.records.stored import read_json
from onepolicy.records.strict import Strict

STATE_FILE = "monitor.json"
STEPS_FILE = "steps.jsonl"
DECIDING = frozenset({"limit", "jump", "stale", "invalid"})
"""kinds of alarm that fail a training, and end it under the policy "halt" """


class MonitorState(Strict):
    """Written as "running" at the start, and once more at the end: a training that was killed never passes."""

    status: Literal["running", "pass", "fail", "unknown"]
    why: str = ""
    """what the status follows from"""
    policy: str
    limits: str
    """the preset's name, or else the limits themselves as JSON"""
    first_step: int | None = None
    last_step: int | None = None
    steps: int = 0
    alarms: dict[str, int] = Field(default_factory=dict)
    """kind -> how many"""
    without_tokens: int = 0
    """steps in which nothing was compared"""
    failures: dict[str, str] = Field(default_factory=dict)
    """what the monitor itself could not do -> why"""
    masked_rollouts: int = 0
    evidence_rollouts: int = 0
    """that the run directory holds"""


def write_state(run: Path, state: MonitorState) -> None:
    """Raises: RunError if the folder cannot be written to."""
    write_text_atomically(run / STATE_FILE, state.model_dump_json(indent=2) + "\n")


def read_state(run: Path) -> MonitorState | None:
    """None if no monitor wrote into this folder. Raises: RunError if the file is damaged."""
    path = run / STATE_FILE
    return read_json(path, MonitorState) if path.exists() else None
