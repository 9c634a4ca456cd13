"""The processes of a gate: one that decides, and this one, which becomes the command."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from onepolicy.errors import EngineError, UsageError

HIGHEST_STATUS = 3
"""of what a check ends with: pass, fail, could not run, unknown"""
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
"""a command that was started otherwise would find them as the system has them"""


def refuse_absent(command: Sequence[str]) -> None:
    """Raise UsageError if there is no such program: better before a long check than after it."""
    if shutil.which(command[0]) is None:
        raise UsageError(f"{command[0]}: there is no such program, or it may not be run. Nothing was checked.")


def decide_apart(arguments: Sequence[str]) -> int:
    """Run `onepolicy ARGUMENTS` in a process of its own, and return how it ended.

    So an engine that crashes does not take the gate with it, and the command finds a process without threads, open
    files or memory of an accelerator. What it prints goes to stderr, as stdout is the command's. A signal that comes
    meanwhile is passed on, and ends this with 128 and its number, whatever the process made of it.
    Raises: EngineError if it ends with what is no status of ours, or by a signal of somebody else.
    """
    started = subprocess.Popen(  # noqa: S603 - this interpreter
        [sys.executable, *safe_path(), "-m", "onepolicy", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr.fileno(),
        process_group=0,  # a terminal's Ctrl-C reaches it once, through us
    )
    with _passing_on(started) as passed:
        status = started.wait()
    if passed:
        return 128 + passed[-1]
    if status < 0:
        raise EngineError(
            f"the check was ended by {signal.Signals(-status).name}, as by a crash or where memory is short; nothing "
            "was decided."
        )
    if status > HIGHEST_STATUS:
        raise EngineError(f"the check ended with status {status}, as by a crash; nothing was decided.")
    return status


def safe_path() -> list[str]:
    """The option by which Python does not look in the working directory, unless this process does so too."""
    return [] if sys.path[:1] in ([""], [os.getcwd()]) else ["-P"]


def become(command: Sequence[str]) -> NoReturn:
    """Replace this process by the command: its signals and its exit status are those of this process.

    Raises: UsageError if the system refuses to start it.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    for number in _IGNORED_BY_PYTHON:
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], list(command))  # noqa: S606 - what the user asked for
    except OSError as error:
        raise UsageError(f"{command[0]}: cannot be started ({error.strerror}). The check passed.") from error


@contextmanager
def _passing_on(process: subprocess.Popen[bytes]) -> Iterator[list[int]]:
    """For as long as the block runs; gives those that came. What whoever started us ignores stays ignored."""
    passed: list[int] = []

    def pass_on(number: int, _: FrameType | None) -> None:
        passed.append(number)
        process.send_signal(number)

    before = {number: signal.getsignal(number) for number in _PASSED_ON}
    taken = [number for number, handler in before.items() if handler is not signal.SIG_IGN]
    try:
        for number in taken:
            signal.signal(number, pass_on)
        yield passed
    finally:
        for number in taken:
            signal.signal(number, before[number])
