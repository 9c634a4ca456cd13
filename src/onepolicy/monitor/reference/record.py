"""`reference.json`: what a reference was at the start, and what was found out about it since. Needs no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from onepolicy.records.files import write_text_atomically
from onepolicy.records.stored import read_json
from onepolicy.records.strict import Strict

REFERENCE_FILE = "reference.json"
Kind = Literal["trained", "dropout", "moved", "weights", "version", "pass", "invalid"]
"""it shares memory with what is trained; scored in train mode; other logprobs, or other weights, than at the start; not
what it must be; not what the trainer used; no logprobs"""


class ReferenceAlarm(Strict):
    """The first time that a check of this kind found something."""

    kind: Kind
    step: int
    """when it was found; 0 is before the first update"""
    fine_at: int | None = None
    """the last step at which the same was looked at and nothing was found"""
    message: str


class ReferenceRecord(Strict):
    """Written as "running" at the start and after each check, and once more at the end."""

    status: Literal["running", "pass", "fail", "unknown"]
    why: str = ""
    """what the status follows from"""
    policy: str
    every: int
    """steps between two checks"""
    adapters: tuple[str, ...] | None = None
    """PEFT's names of those that are part of it; None: it is a model of its own"""
    digest: str = ""
    """of its weights at the start; see weights/digest.py"""
    noise: float | None = None
    """largest |d| of two passes over the canary at the start, nats; 0 where every bit repeats"""
    start_gap: float | None = None
    """mean |d| of policy and reference over the canary at the start, nats; None: not looked at"""
    canary: tuple[float, ...] = ()
    """logprobs at the start, nats"""
    checks: int = 0
    last_step: int | None = None
    """of the last check"""
    alarms: tuple[ReferenceAlarm, ...] = ()
    failures: dict[str, str] = Field(default_factory=dict)
    """what the guard itself could not do -> why"""


def write_reference(folder: Path, record: ReferenceRecord) -> None:
    """Raises: RunError if the folder cannot be written to."""
    write_text_atomically(folder / REFERENCE_FILE, record.model_dump_json(indent=2) + "\n")


def read_reference(folder: Path) -> ReferenceRecord | None:
    """None if no guard wrote into this folder. Raises: RunError if the file is damaged."""
    path = folder / REFERENCE_FILE
    return read_json(path, ReferenceRecord) if path.exists() else None
