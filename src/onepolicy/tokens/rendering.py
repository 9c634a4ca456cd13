"""The process in which templates are rendered, seen from outside."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from contextlib import suppress
from threading import Lock
from types import TracebackType
from typing import Any, Self

_COMMAND = (sys.executable, "-P", "-m", "onepolicy.tokens.sandbox")
_ENDED = 10.0
"""seconds until a killed process must be gone"""


class StoppedError(Exception):
    """A rendering did not end within its budget; says what the template did."""


class RenderingProcess:
    """Renders one request after another, each in a fork with bounds of its own; started when it is first asked.

    Starting costs about 0.2 s, a rendering in a process that runs a few milliseconds. The process ends with `close`,
    with the process that started it, or with a rendering that had to be stopped; the next request starts another.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._lock = Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def ask(self, request: dict[str, Any], *, cpu_seconds: int, wall_seconds: float) -> dict[str, Any]:
        """The answer to a request. Raises: StoppedError."""
        with self._lock:
            answer = self._asked(json.dumps(request).encode() + b"\n", wall_seconds)
        status, written = answer["status"], answer["written"]
        if status in (-getattr(signal, "SIGXCPU", 0), -getattr(signal, "SIGKILL", 0)):
            raise StoppedError(f"used more than {cpu_seconds} s of computing time")
        if status != 0:
            raise StoppedError(f"ended its process (status {status}) {_last_line(written)}".rstrip())
        found: dict[str, Any] = json.loads(written)
        return found

    def close(self) -> None:
        """End the process and what it renders; a process that was forked from the one that started it only lets go."""
        process, self._process = self._process, None
        if process is None or self._owner != os.getpid():
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(_ENDED)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()

    def _asked(self, line: bytes, wall_seconds: float) -> dict[str, Any]:
        process = self._started()
        try:
            assert process.stdin is not None, "it was opened"
            process.stdin.write(line)
            process.stdin.flush()
            answer: dict[str, Any] = json.loads(_line_of(process, wall_seconds))
        except ConnectionError as error:
            self.close()
            raise StoppedError("ended its process") from error
        except BaseException:  # the answer may yet come, and would be taken for the next one's
            self.close()
            raise
        return answer

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._owner != os.getpid() or self._process.poll() is not None:
            self.close()
            self._process = subprocess.Popen(  # noqa: S603
                _COMMAND,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            self._owner = os.getpid()
        return self._process


def _line_of(process: subprocess.Popen[bytes], wall_seconds: float) -> bytes:
    assert process.stdout is not None, "it was opened"
    end = time.monotonic() + wall_seconds
    blocks: list[bytes] = []
    with selectors.DefaultSelector() as ready:
        ready.register(process.stdout, selectors.EVENT_READ)
        while not blocks or not blocks[-1].endswith(b"\n"):
            if not ready.select(max(end - time.monotonic(), 0)):
                raise StoppedError(f"had not ended after {wall_seconds:g} s")
            block = os.read(process.stdout.fileno(), 1 << 16)
            if not block:
                raise StoppedError("ended its process")
            blocks.append(block)
    return b"".join(blocks)


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2]
