"""`reference.json`: what a reference was at the start, and what was found out about it since. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from onepolicy.errors import RunError
from onepolicy.records.files import one_writer, write_text_atomically
from onepolicy.records.stored import read_json
from onepolicy.records.strict import Count, Strict

REFERENCE_FILE = "reference.json"
_LOCK = ".writing-reference"
_ANEW = "Move it away to begin anew, or give the guard another folder."
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
    policy: Literal["warn", "halt"]
    every: Annotated[Count, Field(ge=1)]
    """steps between two checks"""
    adapters: tuple[str, ...] | None = None
    """PEFT's names of those that are part of it; None: it is a model of its own"""
    digest: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    """of its weights at the start; see weights/digest.py"""
    noise: float | None = None
    """largest |d| of two passes over the canary at the start, nats; 0 where every bit repeats"""
    start_gap: float | None = None
    """mean |d| of policy and reference over the canary at the start, nats; None: not looked at"""
    canary: tuple[float, ...] = ()
    """logprobs at the start, nats"""
    checks: Annotated[Count, Field(ge=0)]
    last_step: Count
    """of the last check; 0 before the first"""
    alarms: tuple[ReferenceAlarm, ...] = ()
    failures: dict[str, str] = Field(default_factory=dict)
    """what the guard itself could not do -> why"""

    @property
    def status_at_the_end(self) -> Literal["pass", "fail", "unknown"]:
        """What the rest makes of it."""
        if self.alarms:
            return "fail"
        return "pass" if self.checks and not self.failures else "unknown"


def write_reference(folder: Path, record: ReferenceRecord) -> None:
    """Raises: RunError if the folder cannot be written to."""
    write_text_atomically(folder / REFERENCE_FILE, record.model_dump_json(indent=2) + "\n")


def read_reference(folder: Path) -> ReferenceRecord | None:
    """None if no guard wrote into this folder. Raises: RunError if the file is damaged, or contradicts itself."""
    path = folder / REFERENCE_FILE
    if not path.exists():
        return None
    if not path.is_file():
        raise RunError(f"{path}: is no file, and the guard's record goes there. {_ANEW}")
    try:
        found = read_json(path, ReferenceRecord)
    except RunError as error:
        raise RunError(f"{error} {_ANEW}") from error
    if found.status not in ("running", found.status_at_the_end):
        raise RunError(
            f"{path}: says {found.status!r}, but its {len(found.alarms)} alarms, {len(found.failures)} failures and "
            f"{found.checks} checks make {found.status_at_the_end!r}. The file is damaged. {_ANEW}"
        )
    return found


@contextmanager
def one_guard(folder: Path) -> Iterator[None]:
    """Keep other guards out of the folder. Raises: RunError if one is there, or the folder cannot be written to."""
    with ExitStack() as held:
        try:
            held.enter_context(one_writer(folder / _LOCK))
        except RunError as error:
            if not isinstance(error.__cause__, BlockingIOError):
                raise
            raise RunError(
                f"{folder}: another guard writes its {REFERENCE_FILE} there, in this process or in another. Close that "
                "one or end its process, or give this one a folder of its own."
            ) from error
        yield
