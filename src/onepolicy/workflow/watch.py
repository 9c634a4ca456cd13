"""A live pair, asked for the same fixed ids again and again -> a history of how far they are apart."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from onepolicy.errors import EngineError
from onepolicy.records.files import one_writer
from onepolicy.records.past import PastRun
from onepolicy.records.verdict import Status
from onepolicy.suites import load_suite
from onepolicy.workflow.against_changes import changes_between
from onepolicy.workflow.check import CheckRequest, check
from onepolicy.workflow.history import dated_path, engines_of, pair_of, past_run
from onepolicy.workflow.history_lines import LINES, append_line
from onepolicy.workflow.progress import Progress, Silent

FIXED = "fixed-quick"
"""probed with if the configuration names a suite of prompts, whose completions would be other ones each time"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """Where the time comes from."""

    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    sleep: Callable[[float], None] = time.sleep
    """seconds"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchRequest:
    """What to probe, how often, and until when."""

    check: CheckRequest
    folder: Path
    every: timedelta
    until: Status | None = None
    """end at the first probe that fails, or that is unknown or fails"""
    probes: int | None = None
    """end after so many"""
    keep_all: bool = False
    """keep the run of each probe, and not only of those that say something new"""
    seen: Callable[[PastRun], None] = lambda _: None
    """is told of each probe"""
    clock: Clock = Clock()


@dataclass(slots=True, kw_only=True)
class Watched:
    """What was seen so far."""

    rows: int = 0
    status: Status = Status.UNKNOWN
    """fail if a probe failed, unknown if one is or there was none, else pass"""
    last: PastRun | None = None
    answered: PastRun | None = None
    """the last one that says what it was made with: what changes while a server is away is a change since then"""

    def add(self, row: PastRun) -> None:
        """One more probe."""
        worse = [Status.PASS, Status.UNKNOWN, Status.FAIL]
        self.status = row.status if not self.rows else max(self.status, row.status, key=worse.index)
        self.rows, self.last = self.rows + 1, row
        self.answered = row if row.is_readable else self.answered


def fixed(request: CheckRequest) -> CheckRequest:
    """The same on fixed ids, so that each probe asks for the same and says it of these tokens."""
    return request if load_suite(request.suite).is_fixed else replace(request, suite=FIXED)


def watch(request: WatchRequest, watched: Watched, *, progress: Progress | None = None) -> None:
    """Probe until it is told to end; each probe is in `watched` and, as a line, in the folder before the next begins.

    A pair that does not answer is unknown, which is said once, and is asked again. A KeyboardInterrupt goes through,
    and what was probed before is kept.
    Raises: UsageError for what can never run, RunError if the folder cannot be written or another watch writes it.
    """
    shown = progress or Silent()
    asked = replace(request, check=fixed(request.check))
    if asked.check.suite != request.check.suite:
        shown.note(f"the suite {request.check.suite} is of prompts; probing with {FIXED}, whose ids are fixed")
    with one_writer(request.folder / ".watching"):
        start = request.clock.now()
        while True:
            row = _probe(asked, watched, shown)
            before = watched.last
            watched.add(row)  # first: a signal while the line is written must not lose the answer
            _tell(row, before, shown)
            _keep(row, before, request)
            request.seen(row)
            if watched.rows == request.probes or _ends(row, request.until):
                return
            _wait(request, start)


def _ends(row: PastRun, until: Status | None) -> bool:
    return row.status is Status.FAIL if until is Status.FAIL else until is not None and row.status is not Status.PASS


def _probe(request: WatchRequest, watched: Watched, progress: Progress) -> PastRun:
    """One check; a pair that does not answer is a row without a run."""
    now = request.clock.now()
    path = dated_path(request.folder, "probe", now)
    try:
        check(request.check, path=path, progress=_Quiet(progress))
    except BaseException as error:
        shutil.rmtree(path, ignore_errors=True)  # what one side said alone is of no use to anybody
        if not isinstance(error, EngineError):
            raise
        said = f"Unknown: the probe came to no end: {error}"
        return PastRun(time=now, pair=_pair(request.check), status=Status.UNKNOWN, sentence=said)
    row, before = past_run(path).model_copy(update={"time": now}), watched.answered
    changed = changes_between(before.made, row.made) if before is not None and row.is_readable else ()
    return row.model_copy(update={"changed": tuple(changed)})


def _pair(asked: CheckRequest) -> str:
    """As the row of a run of it says."""
    return pair_of("fixed", load_suite(asked.suite).name, engines_of(str(asked.rollout), str(asked.trainer)))


def _tell(row: PastRun, before: PastRun | None, progress: Progress) -> None:
    """What is new: the first answer, another answer, or another environment."""
    when = f"{row.time:%Y-%m-%d %H:%M:%S}" if row.time else ""
    if before is None or before.status is not row.status or before.is_readable is not row.is_readable:
        progress.note(f"{when} {row.sentence}")
    for change in row.changed:
        progress.note(f"{when} changed: {change}")


def _keep(row: PastRun, before: PastRun | None, request: WatchRequest) -> None:
    """The line, and the run unless it is a pass after a pass with nothing new: then its numbers in the line are all."""
    repeats = before is not None and before.status is Status.PASS and row.status is Status.PASS and not row.changed
    dropped = repeats and bool(row.run) and not request.keep_all
    append_line(request.folder / LINES, row.model_copy(update={"run": ""}) if dropped else row)
    if dropped:
        shutil.rmtree(row.run)


def _wait(request: WatchRequest, start: datetime) -> None:
    """Until the next whole interval since the start; one that a long probe ran over is left out."""
    passed = request.clock.now() - start
    left = request.every - passed % request.every
    request.clock.sleep(left.total_seconds())


class _Quiet:
    """Shows the bars of a probe and leaves out what a check says each time."""

    def __init__(self, shown: Progress) -> None:
        self._shown = shown

    def start(self, title: str, total: int, unit: str = "rollouts") -> None:
        """Nothing: a probe is short, and there are many."""

    def advance(self, count: int) -> None:
        """Nothing."""

    def note(self, message: str) -> None:
        """What a person should know."""
        self._shown.note(message)
