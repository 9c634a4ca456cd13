"""The command line in this process, and in one that can be killed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from onepolicy.cli import main

signal.signal(signal.SIGINT, signal.default_int_handler)
# A shell starts what it puts into the background with SIGINT ignored, which children inherit; these tests send it.


class Ended(NamedTuple):
    status: int
    out: str
    err: str


@pytest.fixture
def cli(capsys, monkeypatch) -> Callable[..., Ended]:
    """Run a command in this process."""

    def run(*arguments: object) -> Ended:
        monkeypatch.setattr(sys, "argv", ["onepolicy", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        return Ended(ended.value.code, *capsys.readouterr())

    return run


class Process:
    """A command in a process of its own."""

    def __init__(self, *arguments: object, code: str = "") -> None:
        start = ["-c", f"{code}\nfrom onepolicy.cli import main\nmain()"] if code else ["-m", "onepolicy"]
        self.popen = subprocess.Popen(
            [sys.executable, *start, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_for(self, folder: Path, parts: int) -> None:
        """Until the folder holds this many parts."""
        deadline = time.monotonic() + 30
        while len(list(folder.glob("part-*.parquet"))) < parts:
            assert self.popen.poll() is None, self.popen.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.005)

    def send(self, what: signal.Signals) -> Ended:
        """Send a signal to this process alone, and wait for its end."""
        os.kill(self.popen.pid, what)
        return self.end()

    def end(self) -> Ended:
        out, err = self.popen.communicate(timeout=60)
        return Ended(self.popen.returncode, out, err)


@pytest.fixture
def process() -> Iterator[Callable[..., Process]]:
    """Start a command in a process of its own; what still runs at the end of the test is killed."""
    started: list[Process] = []

    def start(*arguments: object, code: str = "") -> Process:
        started.append(Process(*arguments, code=code))
        return started[-1]

    yield start
    for one in started:
        if one.popen.poll() is None:
            one.popen.kill()
        one.popen.communicate()
