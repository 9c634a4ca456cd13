"""An engine's process: started, waited for, and ended with all that it started."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import orjson

from onepolicy.errors import EngineError
from onepolicy.records.files import write_bytes_atomically

LOG = "server.log"
MARK = "server.json"
"""beside the log while it runs: by which a process that outlived its starter is known again"""
_KEPT_LINES = 15
_ASKED_EVERY = 0.25
"""seconds"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What to start, and where."""

    command: Sequence[str]
    environment: Mapping[str, str]
    """goes over that of this process"""
    cwd: Path
    folder: Path
    """where its log is kept"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Server:
    """A started engine: the leader of a process group of its own."""

    process: subprocess.Popen[bytes]
    folder: Path

    @classmethod
    def started(cls, start: Start) -> Server:
        """Raises: EngineError if the command cannot be run at all."""
        start.folder.mkdir(parents=True, exist_ok=True)
        try:
            with (start.folder / LOG).open("wb") as log:
                process = subprocess.Popen(  # noqa: S603 - the command of the person's own file
                    list(start.command),
                    env={**os.environ, **start.environment},
                    cwd=start.cwd,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
        except OSError as error:
            raise EngineError(
                f"{start.command[0]!r} cannot be started in {start.cwd} ({error.strerror}). Check the command."
            ) from error
        mark = {"pid": process.pid, "born": born(process.pid)}
        write_bytes_atomically(start.folder / MARK, orjson.dumps(mark))
        return cls(process=process, folder=start.folder)

    def wait_until_healthy(self, url: str, *, within: float) -> None:
        """Raises: EngineError if it ends, or does not answer with 200 in time."""
        deadline = time.monotonic() + within
        said = "nothing"
        with httpx.Client(trust_env=False, timeout=5.0) as client:
            while time.monotonic() < deadline:
                if has_ended(self.process):
                    raise EngineError(f"the engine {self._end()} before it was ready. {self._last_lines()}")
                try:
                    said = str(client.get(url).status_code)
                except httpx.HTTPError as error:
                    said = type(error).__name__
                if said == "200" and not has_ended(self.process):
                    return
                time.sleep(_ASKED_EVERY)
        raise EngineError(
            f"the engine was not ready after {within:g} s: {url} answered {said} last. Raise start_seconds if it needs "
            f"longer. {self._last_lines()}"
        )

    def end(self, *, grace: float) -> None:
        """Ask it to end, wait, and kill what is left of its process group."""
        _signal_group(self.process, signal.SIGTERM)
        deadline = time.monotonic() + grace
        while not has_ended(self.process) and time.monotonic() < deadline:
            time.sleep(0.05)
        _signal_group(self.process, signal.SIGKILL)
        self.process.wait()
        (self.folder / MARK).unlink(missing_ok=True)

    def kill(self) -> None:
        """At once; `end` is still to be called."""
        _signal_group(self.process, signal.SIGKILL)

    def _end(self) -> str:
        _signal_group(self.process, signal.SIGKILL)  # what it started, before its id may become somebody else's
        code = self.process.wait()
        return f"exited with status {code}" if code >= 0 else f"was killed by {signal.Signals(-code).name}"

    def _last_lines(self) -> str:
        text = (self.folder / LOG).read_bytes()[-20_000:].decode("utf-8", "replace")
        lines = text.splitlines()[-_KEPT_LINES:]
        if not lines:
            return f"It printed nothing (log {self.folder / LOG})."
        return f"It printed last (log {self.folder / LOG}):\n" + "\n".join(f"  {line}" for line in lines)


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def refuse_taken(port: int) -> None:
    """Raises: EngineError if somebody listens there: its answers would be taken for those of the engine."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port that was just left is free
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise EngineError(
                f"port {port} is taken ({error.strerror}), so its answers would not be those of the engine. End what "
                "listens there, or leave the key port out to take a free one for each start."
            ) from error


def has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Without waiting for it, so that nobody else can get its id."""
    if process.returncode is not None:
        return True
    flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
    return os.waitid(os.P_PID, process.pid, flags) is not None


def end_left_over(folder: Path) -> bool:
    """End the engine of a start whose starter was killed; whether there was one.

    It is known by its id and the time of its start, so that nobody else's process is ended.
    """
    mark = folder / MARK
    if not mark.exists():
        return False
    said = orjson.loads(mark.read_bytes())
    there = bool(said["born"]) and born(said["pid"]) == said["born"]
    if there:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(said["pid"], signal.SIGKILL)
    mark.unlink(missing_ok=True)
    return there


def born(pid: int) -> str:
    """When a process was started, in the system's ticks; empty if it is gone, or the system does not say."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[19]  # field 22 of proc(5); the name before may hold spaces


def _signal_group(process: subprocess.Popen[bytes], what: signal.Signals) -> None:
    if process.returncode is None:  # not waited for yet, so the id is still its own
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, what)
