"""A server that answers what a test says, over a real socket."""

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple


class Request(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Answer(NamedTuple):
    body: bytes = b"{}"
    status: int = 200
    headers: dict[str, str] = {}  # noqa: RUF012 - never changed


Respond = Callable[["Handler", Request], Answer | None]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: "Scripted"

    def log_message(self, *_: Any) -> None:
        """Silent."""

    def serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        request = Request(self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body)
        self.server.requests.append(request)
        answer = self.server.respond(self, request)
        if answer is None:
            self.close_connection = True
            return
        self.send_response(answer.status)
        for name, value in {"content-type": "application/json", **answer.headers}.items():
            self.send_header(name, value)
        if "content-length" not in {name.lower() for name in answer.headers}:
            self.send_header("content-length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body)

    do_GET = do_POST = serve  # noqa: N815 - the name is http.server's


class Scripted(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def __init__(self, respond: Respond) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.respond = respond
        self.requests: list[Request] = []
        self.ended = threading.Event()
        """set when the test is over, for answers that wait"""
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news."""

    def end(self) -> None:
        self.ended.set()
        self.shutdown()
        self._thread.join()
        self.server_close()
