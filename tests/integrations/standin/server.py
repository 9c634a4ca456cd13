"""A dialect behind a real socket, with the faults that are of no dialect."""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from standin.dialect import Dialect, Faults, Json, Reply


class StandIn:
    """One dialect behind a port of 127.0.0.1, in threads that end with it."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.requests: list[tuple[str, str, Json]] = []
        self.headers: list[dict[str, str]] = []
        self.most_at_once = 0
        self.sockets: set[socket.socket] = set()
        self.lock = threading.Lock()
        self.ended = threading.Event()
        self._at_once = 0
        self._port = 0
        self._http: _Listener | None = None
        self._thread: threading.Thread | None = None
        self._dying: threading.Thread | None = None
        self.revive()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def asked(self, path: str) -> list[Json]:
        """Bodies of the requests to one path, in order."""
        return [body for _, where, body in self.requests if where == path]

    def revive(self) -> None:
        """Listen, on the same port as before if there was one."""
        self.die()
        self.ended.clear()
        self._http = _Listener(("127.0.0.1", self._port), self)
        self._port = self._http.server_address[1]
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def die(self) -> None:
        """Refuse connections and break those that are open; returns when all threads have ended."""
        if self._dying is not None and self._dying is not threading.current_thread():
            self._dying.join()
        http, self._http = self._http, None
        if http is None:
            return
        self.ended.set()
        http.shutdown()
        with self.lock:
            for one in self.sockets:
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
        http.server_close()
        assert self._thread is not None
        self._thread.join()

    def die_soon(self) -> None:
        """The same, from a thread that answers."""
        with self.lock:
            if self._dying is None or not self._dying.is_alive():
                self._dying = threading.Thread(target=self.die)
                self._dying.start()

    def answer(self, method: str, path: str, body: Json) -> Reply | None:
        """The reply, with the faults that count requests; None: break the connection."""
        question = self.dialect.is_question(path)
        with self.lock:
            self.requests.append((method, path, body))
            self._at_once += question
            self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            if question and self.dialect.faults.delay:
                self.ended.wait(self.dialect.faults.delay)
            with self.lock:
                return self._reply(method, path, body, question=question)
        finally:
            with self.lock:
                self._at_once -= question

    def _reply(self, method: str, path: str, body: Json, *, question: bool) -> Reply | None:
        faults = self.dialect.faults
        if question and faults.refuse > 0:
            faults.refuse -= 1
            return faults.refuse_status, {"error": "busy"}
        if question and faults.die_after is not None and self.dialect.served >= faults.die_after:
            return None
        if question:
            self.dialect.reloaded()
            self.dialect.served += 1
        return self.dialect.reply(method, path, body) or (404, {"detail": "Not Found"})


class _Listener(ThreadingHTTPServer):
    daemon_threads = False
    request_queue_size = 512

    def __init__(self, address: tuple[str, int], standin: StandIn) -> None:
        super().__init__(address, _Handler)
        self.standin = standin

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news; anything else is a mistake here."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    server: _Listener

    @property
    def standin(self) -> StandIn:
        return self.server.standin

    def setup(self) -> None:
        super().setup()
        with self.standin.lock:
            self.standin.sockets.add(self.connection)
            if self.standin.ended.is_set():
                self.connection.shutdown(socket.SHUT_RDWR)

    def finish(self) -> None:
        with self.standin.lock:
            self.standin.sockets.discard(self.connection)
        super().finish()

    def log_message(self, *_: Any) -> None:
        """Silent."""

    def do_GET(self) -> None:
        self.serve()

    def do_POST(self) -> None:
        self.serve()

    def serve(self) -> None:
        length = int(self.headers.get("content-length") or 0)
        content = self.rfile.read(length)
        if len(content) < length:  # the connection was broken, by the client or by `die`
            self.close_connection = True
            return
        body = json.loads(content or b"{}")
        self.standin.headers.append(dict(self.headers))
        faults = self.standin.dialect.faults
        if faults.redirect:
            self.send(307, b"", location=faults.redirect)
            return
        reply = self.standin.answer(self.command, self.path.partition("?")[0], body)
        if reply is None:
            self.close_connection = True
            self.standin.die_soon()
            return
        status, payload = reply
        said = payload.encode() if isinstance(payload, str) else json.dumps(payload).encode()
        if status == 200 and self.standin.dialect.is_question(self.path):
            self.send_planted(said, faults)
        else:
            extra = {"retry_after": faults.retry_after} if status in (429, 503) else {}
            self.send(status, said, **extra)

    def send_planted(self, content: bytes, faults: Faults) -> None:
        half = content[: len(content) // 2]
        if faults.endless:
            self.send_for_ever()
        elif faults.cut_json > 0:
            faults.cut_json -= 1
            self.send(200, half)
        elif faults.cut_body > 0:
            faults.cut_body -= 1
            self.close_connection = True
            self.send(200, half, length=len(content))
        else:
            self.send(200, content)

    def send(self, status: int, content: bytes, *, length: int | None = None, **headers: str) -> None:
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content) if length is None else length))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(content)
        self.wfile.flush()

    def send_for_ever(self) -> None:
        self.close_connection = True
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.end_headers()
        while not self.standin.ended.is_set():
            self.wfile.write(b" " * 2**16)


@contextmanager
def standing_in(dialect: Dialect) -> Iterator[StandIn]:
    """A server for the length of a block."""
    server = StandIn(dialect)
    try:
        yield server
    finally:
        server.die()
