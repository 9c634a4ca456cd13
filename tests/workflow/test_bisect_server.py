"""Processes that serve, do not, end, or do not."""

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from onepolicy.errors import EngineError
from onepolicy.workflow.bisect_server import (
    MARK,
    Server,
    Start,
    born,
    end_left_over,
    free_port,
    has_ended,
    refuse_taken,
)

SERVES = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response({status}); self.end_headers()
    def log_message(self, *_): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
code = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", code])
print(child.pid, flush=True)
time.sleep(600)
"""


def start(folder: Path, code: str, *arguments: object, **environment: str) -> Start:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return Start(command=command, environment=environment, cwd=folder.parent, folder=folder)


@contextmanager
def running(asked: Start):
    server = Server.started(asked)
    try:
        yield server
    finally:
        server.end(grace=2.0)


def is_alive(pid: int) -> bool:
    """A zombie is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until(happens, *, within: float = 20.0) -> None:
    deadline = time.monotonic() + within
    while not happens():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_server_is_waited_for_and_ended(tmp_path):
    port = free_port()
    with running(start(tmp_path / "s", SERVES.format(status=200), port)) as server:
        server.wait_until_healthy(f"http://127.0.0.1:{port}/health", within=20)
        assert not has_ended(server.process)
        assert (tmp_path / "s" / MARK).exists()
    assert server.process.returncode == -signal.SIGTERM
    assert not (tmp_path / "s" / MARK).exists()
    refuse_taken(port)


def test_its_variables_and_its_folder_are_those_that_were_asked_for(tmp_path):
    code = "import os; print(os.environ['ASKED'], os.getcwd())"
    with running(start(tmp_path / "s", code, ASKED="yes")) as server:
        until(lambda: has_ended(server.process))
    assert (tmp_path / "s" / "server.log").read_text().split() == ["yes", str(tmp_path)]


def test_one_that_ends_is_said_to_with_what_it_printed(tmp_path):
    code = "import sys; print('no such flag'); sys.exit(3)"
    with running(start(tmp_path / "s", code)) as server, pytest.raises(EngineError) as error:
        server.wait_until_healthy("http://127.0.0.1:9/health", within=20)
    assert "exited with status 3 before it was ready" in str(error.value)
    assert "no such flag" in str(error.value)


def test_what_one_that_ended_early_had_started_is_killed(tmp_path):
    code = (
        "import subprocess, sys\n"
        "print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']).pid, flush=True); sys.exit(1)"
    )
    with running(start(tmp_path / "s", code)) as server, pytest.raises(EngineError, match="exited with status 1"):
        server.wait_until_healthy("http://127.0.0.1:9/health", within=20)
    child = int((tmp_path / "s" / "server.log").read_text())
    until(lambda: not is_alive(child))


def test_one_that_never_gets_healthy_is_given_up(tmp_path):
    port = free_port()
    with running(start(tmp_path / "s", SERVES.format(status=503), port)) as server:
        health = f"http://127.0.0.1:{port}/health"
        with pytest.raises(EngineError, match=r"not ready after 1\.5 s.*503 last"):
            server.wait_until_healthy(health, within=1.5)


def test_a_command_that_is_not_there_is_said(tmp_path):
    asked = Start(command=["/no/such/python"], environment={}, cwd=tmp_path, folder=tmp_path / "s")
    with pytest.raises(EngineError, match=r"'/no/such/python' cannot be started .*No such file"):
        Server.started(asked)


def test_what_does_not_end_is_killed_with_what_it_started(tmp_path):
    asked = start(tmp_path / "s", STUBBORN)
    server = Server.started(asked)
    log = tmp_path / "s" / "server.log"
    until(lambda: log.read_text().endswith("\n"))
    child = int(log.read_text())
    assert is_alive(child)
    server.end(grace=0.2)
    assert server.process.returncode == -signal.SIGKILL
    until(lambda: not is_alive(child))


def test_a_port_that_somebody_listens_on_is_refused():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with pytest.raises(EngineError, match=r"port \d+ is taken"):
            refuse_taken(listener.getsockname()[1])


def test_an_engine_that_outlived_its_starter_is_ended_and_nobody_elses_process(tmp_path):
    folder = tmp_path / "s"
    code = (
        "from pathlib import Path; from onepolicy.workflow.bisect_server import Server, Start; import os, sys\n"
        "s = Server.started(Start(command=[sys.executable, '-c', 'import time; time.sleep(600)'], environment={},"
        " cwd=Path('.'), folder=Path(sys.argv[1])))\n"
        "print(s.process.pid, flush=True); os._exit(9)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 9, done.stderr
    pid = int(done.stdout)
    assert is_alive(pid)
    mark = (folder / MARK).read_text()
    (folder / MARK).write_text(mark.replace(born(pid), "1"))  # another process that got the id
    assert not end_left_over(folder)
    assert is_alive(pid)
    (folder / MARK).write_text(mark)
    assert end_left_over(folder)
    until(lambda: not is_alive(pid))
    assert not end_left_over(folder)
    assert born(os.getpid())
