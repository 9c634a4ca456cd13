"""One rank as its parent sees it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import IO

from onepolicy.integrations.callable.channel import Channel

_KEPT_LINES = 20
"""of what a rank printed"""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankProcess:
    """A started rank: the leader of a process group of its own."""

    rank: int
    process: subprocess.Popen[bytes]
    channel: Channel
    printed: IO[bytes]
    """its stdout and stderr; a file without a name"""

    def end(self, *, grace: float) -> None:
        """Let it end by itself for `grace` seconds, then kill it and all that it started. Waits for it."""
        deadline = time.monotonic() + grace
        while not self._has_ended() and time.monotonic() < deadline:
            time.sleep(0.02)
        if self.process.returncode is None:  # not waited for yet, so the id is still its own
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        """Free its socket and its file."""
        self.channel.close()
        self.printed.close()

    def ask_where_it_is(self) -> None:
        """Have it print the Python stack it is in."""
        if not self._has_ended():
            self.process.send_signal(signal.SIGUSR1)

    @property
    def death(self) -> str:
        """How it ended, for a message."""
        code = self.process.returncode
        if code >= 0:
            return f"exited with status {code}"
        name = signal.Signals(-code).name
        hint = ", which is what the kernel does when memory runs out" if name == "SIGKILL" else ""
        return f"was killed by {name}{hint}"

    @property
    def last_lines(self) -> str:
        """What it printed last, for a message."""
        self.printed.seek(0, os.SEEK_END)
        self.printed.seek(max(0, self.printed.tell() - 10_000))
        lines = self.printed.read().decode("utf-8", "replace").splitlines()[-_KEPT_LINES:]
        if not lines:
            return "It printed nothing."
        return "It printed last:\n" + "\n".join(f"  {line}" for line in lines)

    def _has_ended(self) -> bool:
        """Without waiting for it, so that nobody else can get its id."""
        if self.process.returncode is not None:
            return True
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self.process.pid, flags) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStart:
    """What each rank runs: `python -m MODULE TARGET RANK DESCRIPTOR`."""

    module: str
    target: str
    threads: int | None = None
    """of OpenMP in each rank; None shares the machine's cores among the ranks"""


def start_rank(start: RankStart, *, rank: int, count: int, port: int) -> RankProcess:
    """Start one of `count` ranks, with the variables that torchrun would set."""
    ours, theirs = socket.socketpair()
    printed = tempfile.TemporaryFile()  # noqa: SIM115  closed with the rank
    with theirs:
        process = subprocess.Popen(  # noqa: S603  the command is ours
            [sys.executable, "-m", start.module, start.target, str(rank), str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=printed,
            env=_environment(start, rank=rank, count=count, port=port),
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
    return RankProcess(rank=rank, process=process, channel=Channel(ours), printed=printed)


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _environment(start: RankStart, *, rank: int, count: int, port: int) -> dict[str, str]:
    threads = start.threads or max(1, (os.cpu_count() or 1) // count)
    chosen = {"OMP_NUM_THREADS": str(threads), "GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}
    ours = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "PYTHONPATH": os.pathsep.join(folder or os.getcwd() for folder in sys.path),
        "PYTHONUNBUFFERED": "1",
    }
    return {**chosen, **os.environ, **ours}
