"""One real start: an engine with some switches, checked, and ended."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from onepolicy.engines.spec import parse_spec
from onepolicy.errors import OnePolicyError, UsageError
from onepolicy.integrations import check_spec
from onepolicy.judgement.load import load_limits
from onepolicy.records.bisection import Attempt
from onepolicy.records.run import Run
from onepolicy.records.verdict import Judgement, Status
from onepolicy.suites import load_suite
from onepolicy.workflow.bisect_config import PORT, BisectConfig, JudgeFixed
from onepolicy.workflow.bisect_server import Server, Start, free_port, refuse_taken
from onepolicy.workflow.check import check
from onepolicy.workflow.config import check_request
from onepolicy.workflow.judge import JudgeRequest, judge
from onepolicy.workflow.progress import Progress
from onepolicy.workflow.score import ScoreRequest, score

RUN = "run"
READING = "bisected"
"""name of the started engine's reading of fixed ids"""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTrial:
    """Starts the engine of a configuration and checks it."""

    config: BisectConfig
    home: Path
    """the folder of the configuration's file"""
    progress: Progress

    def refuse_odd(self) -> None:
        """Find out before the first start what could not be checked. Raises: UsageError, RunError."""
        port = self.config.port or 1
        if self.config.judge is not None:
            fixed = self.config.judge
            check_spec(parse_spec(fixed.engine.replace(PORT, str(port))))
            load_limits(fixed.limits)
            run = Run.open(self.home / fixed.run)
            run.reading_info(fixed.against)
            if READING in run.reading_names():
                raise UsageError(f"{run.path}: has a reading {READING!r} already. Name a run without it.")
            return
        request = check_request(self.config.check_config(port=port, folder=self.home))
        for spec in (request.rollout, request.trainer, *request.also):
            check_spec(spec)
        load_suite(request.suite)

    def checks(self) -> str:
        """What is checked, if a file of its own says it: as it reads now."""
        named = self.config.check
        return (self.home / named).read_text(encoding="utf-8") if isinstance(named, str) else ""

    def __call__(self, switches: tuple[str, ...], folder: Path) -> Attempt:
        """The outcome with these switches bad; unknown if the engine does not start, or cannot be checked.

        Raises: EngineError if the port is taken, which no switch can be blamed for.
        """
        port = self.config.port or free_port()
        refuse_taken(port)
        began = time.monotonic()
        try:
            with self._running(switches, port, folder):
                judgement = self._checked(port, folder)
            status, said = judgement.status, judgement.sentence
        except _TooLongError as error:
            status, said = Status.UNKNOWN, str(error)
        except OnePolicyError as error:
            status, said = Status.UNKNOWN, f"not checked: {error}"
        return Attempt(status=status, sentence=said, seconds=round(time.monotonic() - began, 1))

    @contextmanager
    def _running(self, switches: tuple[str, ...], port: int, folder: Path) -> Iterator[None]:
        start = Start(
            command=self.config.command_of(switches, port=port),
            environment=self.config.environment_of(switches),
            cwd=self.home,
            folder=folder,
        )
        server = Server.started(start)
        try:
            server.wait_until_healthy(self.config.health.replace(PORT, str(port)), within=self.config.start_seconds)
            with _at_most(self.config.check_seconds, server):
                yield
        finally:
            server.end(grace=self.config.stop_seconds)

    def _checked(self, port: int, folder: Path) -> Judgement:
        if self.config.judge is not None:
            return _judged(self.config.judge, self.home, port, folder)
        request = check_request(self.config.check_config(port=port, folder=self.home))
        return check(request, path=folder / RUN, progress=self.progress)


class _TooLongError(Exception):
    """The check was ended."""


@contextmanager
def _at_most(seconds: float, server: Server) -> Iterator[None]:
    """Kill the engine after so long: what asks it then fails, and what needed no engine any more does not count."""
    late = threading.Event()

    def end() -> None:
        late.set()
        server.kill()

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    too_long = _TooLongError(f"not checked: the check took longer than {seconds:g} s (check_seconds)")
    try:
        yield
    except OnePolicyError as error:
        if late.is_set():
            raise too_long from error
        raise
    finally:
        timer.cancel()
    if late.is_set():
        raise too_long


def _judged(fixed: JudgeFixed, home: Path, port: int, folder: Path) -> Judgement:
    """In a copy of the run, so that the run stays as it is."""
    path = folder / RUN
    shutil.copytree(home / fixed.run, path, ignore=shutil.ignore_patterns("judgements"))
    score(path, ScoreRequest(engine=parse_spec(fixed.engine.replace(PORT, str(port))), name=READING))
    limits = load_limits(fixed.limits)
    return judge(path, JudgeRequest(rollout=READING, trainer=fixed.against, limits=limits))
