"""The lock of a protocol, from wherever it is said: written, and held against what is used."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from onepolicy.errors import UsageError
from onepolicy.integrations import PROTOCOLS
from onepolicy.records.verdict import Status
from onepolicy.sampling.diff import Difference
from onepolicy.sampling.lock import Lock, lock_of, moved, read_lock, write_lock
from onepolicy.workflow.green import GREEN
from onepolicy.workflow.live_protocol import is_live
from onepolicy.workflow.progress import Progress
from onepolicy.workflow.protocol import LOCK_ENDING, SILENT, Said, refuse_other_model, said_in, told, whole_protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """A protocol held against its lock."""

    lock: Lock
    now: Said
    moved: tuple[Difference, ...]
    untold: tuple[Difference, ...] = ()
    """fields that moved by less than a running server shows, if they did"""

    @property
    def status(self) -> Status:
        """Fail if a field moved, whatever it does; unknown if a side has what cannot be compared."""
        if self.moved:
            return Status.FAIL
        return Status.UNKNOWN if self.now.open_notes or self.untold else Status.PASS


@dataclass(frozen=True, slots=True, kw_only=True)
class Locked:
    """A lock that was written, and what was there before."""

    lock: Lock
    was_there: bool
    replaced: Lock | None = None
    """the lock that it took the place of; None if nothing was there, or a file that is none"""

    @property
    def moved(self) -> tuple[Difference, ...]:
        """The fields that moved since the lock before."""
        return () if self.replaced is None else moved(self.replaced, self.lock.protocol)


def lock_path(source: str) -> Path:
    """Where the lock of a source is kept unless told otherwise: beside it.

    Raises: UsageError for a running server, for `green:`, which is another run by and by, for the root folder, and for
    a lock.
    """
    framework, _, target = source.partition(":")
    path = Path(target if target and framework in PROTOCOLS else source)
    path = path if path.name not in ("", "..") else path.resolve()
    if is_live(source) or (target and framework == GREEN) or not path.name:
        raise UsageError(
            f"{source}: there is no file beside which a lock could lie. Say where it is kept: `protocol lock` with "
            "--output FILE, `protocol verify` with --lock FILE."
        )
    if path.suffix == LOCK_ENDING:
        raise UsageError(
            f"{source}: is a lock itself. Verify what was locked: onepolicy protocol verify "
            f"{shlex.quote(str(path.with_suffix('')))}, or another SOURCE with --lock {shlex.quote(str(path))}."
        )
    return path.with_name(path.name + LOCK_ENDING)


def lock(source: str, path: Path, progress: Progress = SILENT) -> Locked:
    """Write the lock of the protocol that a source says. Raises: UsageError if it cannot be said wholly."""
    made = lock_of(whole_protocol(source, progress, what="a lock would not hold it"), source=source)
    was_there = path.exists()
    replaced = _lock_there(path) if was_there else None
    write_lock(path, made)
    return Locked(lock=made, was_there=was_there, replaced=replaced)


def _lock_there(path: Path) -> Lock | None:
    try:
        return read_lock(path)
    except UsageError:  # an edited lock, or another file: whoever writes here is told so
        return None


def verify(source: str, path: Path, progress: Progress = SILENT) -> Verified:
    """A source held against a lock. Raises: UsageError if either cannot be read, or is of another model than a run."""
    output = "" if _is_beside(source, path) else f" --output {shlex.quote(str(path))}"
    kept, now = read_lock(path, source=shlex.quote(source) + output), said_in(source, progress)
    refuse_other_model(str(path), kept.protocol, now.vocab_size, source)
    found, untold = told(moved(kept, now.protocol), now, now)
    return Verified(lock=kept, now=now, moved=found, untold=untold)


def _is_beside(source: str, path: Path) -> bool:
    try:
        return path == lock_path(source)
    except UsageError:
        return False
