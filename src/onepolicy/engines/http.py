"""JSON over HTTP to one server: many requests in flight, retries that can help, and an end to everything."""

from __future__ import annotations

import asyncio
import math
import random
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from contextvars import Context, ContextVar, copy_context
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, TypeVar

import httpcore
import httpx
from pydantic import Field
from pydantic_core import from_json

from onepolicy.engines.legs import LegChange, server_legs
from onepolicy.engines.options import EngineOptions
from onepolicy.engines.requests import Json, authorisation, checked_url, key_of, written
from onepolicy.errors import EngineError
from onepolicy.version import VERSION
from onepolicy.visible import visible

T = TypeVar("T")
Parse = Callable[[bytes], Any]

MOST_BYTES = 256 * 2**20
"""of one answer; top lists of 20 for a sequence of 100,000 tokens are half of it"""
RETRIED = (408, 425, 429, 500, 502, 503, 504)
"""statuses that may pass by themselves"""
LONGEST_WAIT = 20.0
"""seconds before a retry, whatever the server asks for"""
CONNECT = 10.0
"""seconds to wait for a connection; one that fails is tried again"""
_SHOWN = 300
_HEADERS = {
    "accept": "application/json",
    "accept-encoding": "gzip, deflate",
    "content-type": "application/json",
    "user-agent": f"onepolicy/{VERSION}",
}
_BROKEN = (httpcore.TimeoutException, httpcore.NetworkError, httpcore.ProtocolError, httpx.DecodingError)
"""what a connection that fails, breaks or is cut short raises"""


class ServerOptions(EngineOptions):
    """Options of every engine behind a URL."""

    concurrency: int = Field(default=32, ge=1, le=4096)
    """requests in flight at most"""
    timeout: float = Field(default=600.0, gt=0, allow_inf_nan=False)
    """seconds that one request may take, with its answer read to the end"""
    retries: int = Field(default=6, ge=0, le=50)
    """times a request is sent again after a broken connection or a status 408, 425, 429, 500, 502, 503 or 504"""
    key_env: str = ""
    """name of the environment variable that holds the key; the key itself is never written anywhere"""

    def legs(self, target: str) -> dict[str, LegChange | str]:
        """What requests can say; the rest is decided where the server is started."""
        del target
        return server_legs(concurrency=self.concurrency)


_ASIDE: ContextVar[bool] = ContextVar("aside", default=False)


@contextmanager
def aside() -> Iterator[None]:
    """Requests that are made inside do not wait for their turn behind those that are queued."""
    before = _ASIDE.set(True)
    try:
        yield
    finally:
        _ASIDE.reset(before)


class UnreachableError(EngineError):
    """No answer came, or none that could be read, however often it was asked for."""


class StatusError(EngineError):
    """The server answered with a status that says no, or says so again and again."""

    def __init__(self, message: str, *, status: int, said: str) -> None:
        super().__init__(message)
        self.status = status
        self.said = said
        """the beginning of the answer"""

    @property
    def unknown_path(self) -> bool:
        """Whether the server has nothing at this path, or not for this method."""
        return self.status in (404, 405, 501)


class HttpClient:
    """Sends requests to one server from an event loop in a thread of its own.

    Retried: a connection that fails or breaks, an answer that is cut short, and the statuses `RETRIED`, each after a
    wait that doubles and is drawn at random. Never retried: any other status. No redirect is followed. What comes back
    is a JSON object, or an error.
    """

    def __init__(self, url: str, options: ServerOptions) -> None:
        self.url = checked_url(url)
        self._options = options
        self._key = key_of(options.key_env)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._in_flight = asyncio.Semaphore(options.concurrency)
        self._ssl = httpx.create_ssl_context(trust_env=False)
        self._idle: list[httpcore.AsyncHTTPConnection] = []
        self._urls: dict[str, httpcore.URL] = {}
        host = {"host": httpx.URL(self.url).netloc.decode()}
        self._headers = httpx.Headers(host | _HEADERS | authorisation(self._key)).raw
        # of the whole exchange `_exchange` keeps the time
        self._extensions = {"timeout": httpx.Timeout(None, connect=min(CONNECT, options.timeout)).as_dict()}
        self._ended, self._submitting = False, threading.Lock()
        self._submitted: deque[tuple[Coroutine[Any, Any, Any], Future[Any], Context]] = deque()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"http {self.url}", daemon=True)
        self._thread.start()

    def get(self, path: str) -> Json:
        """The JSON object at a path; an empty answer is an empty one. Raises: EngineError."""
        return self.call(self.request("GET", path))

    def post(self, path: str, body: Json) -> Json:
        """The JSON object that a request is answered with. Raises: EngineError."""
        return self.call(self.request("POST", path, body))

    def has(self, path: str) -> bool:
        """Whether something answers a GET of this path. Raises: EngineError if that cannot be known."""
        try:
            self.get(path)
        except StatusError as error:
            if error.status in RETRIED:
                raise
            return False
        return True

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine that runs in the client's loop."""
        assert threading.current_thread() is not self._thread, "a coroutine of the client waits for another one"
        return _result(self.submit(coroutine))

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine in the client's loop. Raises: RuntimeError if the client is closed."""
        future: Future[T] = Future()
        with self._submitting:
            if not self._ended:
                self._submitted.append((coroutine, future, copy_context()))
                if len(self._submitted) == 1:  # of more the loop knows already: to wake it costs as much as to send
                    self._loop.call_soon_threadsafe(self._start)
                return future
        coroutine.close()
        raise RuntimeError(f"{self.url}: something is asked of a client that is closed.")

    def close(self) -> None:
        """Give up what is in flight and end the thread. May be called twice."""
        assert threading.current_thread() is not self._thread, "a coroutine of the client closes it"
        if self._loop.is_closed():
            return
        with self._submitting:
            self._ended = True
        _result(asyncio.run_coroutine_threadsafe(self._closed(), self._loop))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _start(self) -> None:
        while self._submitted:
            coroutine, future, context = self._submitted.popleft()
            task = self._loop.create_task(coroutine, context=context)
            self._tasks.add(task)
            task.add_done_callback(partial(self._finish, future))
            future.add_done_callback(partial(self._give_up, task))

    def _finish(self, future: Future[Any], task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            future.cancel()
        error = None if task.cancelled() else task.exception()
        if future.set_running_or_notify_cancel():
            if error is None:
                future.set_result(task.result())
            else:
                future.set_exception(error)

    def _give_up(self, task: asyncio.Task[Any], future: Future[Any]) -> None:
        if future.cancelled() and not task.done():
            self._loop.call_soon_threadsafe(task.cancel)

    async def request(self, method: str, path: str, body: Json | None = None, *, parse: Parse = from_json) -> Json:
        """One exchange, with retries. Raises: EngineError that names the URL and what the server said.

        parse: makes the JSON value of an answer's text, and raises ValueError if that is none.
        """
        started, wait = time.monotonic(), 0.0
        for attempt in range(self._options.retries + 1):
            if wait:
                await asyncio.sleep(wait)
            try:
                return await self._exchange(method, path, body, parse)
            except _MayPassError as error:
                last = error
                wait = max(_backoff(attempt), min(error.retry_after, LONGEST_WAIT))
        tries = "1 try" if not self._options.retries else f"{self._options.retries + 1} tries"
        message = (
            f"{self.url}{path}: {last} ({tries} in {time.monotonic() - started:.0f} s). See whether the server is up; "
            "a command with --run keeps what was finished, and goes on from there with --resume."
        )
        raise StatusError(message, status=last.status, said=last.said) if last.status else UnreachableError(message)

    async def _exchange(self, method: str, path: str, body: Json | None, parse: Parse) -> Json:
        turn = nullcontext() if _ASIDE.get() else self._in_flight
        async with turn:
            try:
                async with asyncio.timeout(self._options.timeout):
                    return await self._over_a_connection(self._asked(method, path, body), path, parse)
            except TimeoutError as error:
                raise UnreachableError(
                    f"{self.url}{path}: no whole answer within {self._options.timeout:g} s. Give it longer with "
                    "?timeout=SECONDS, or ask for fewer at a time with ?concurrency=. A command with --run keeps "
                    "what was finished; --resume goes on from there."
                ) from error
            except _BROKEN as error:
                raise _MayPassError(
                    f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
                ) from error

    async def _kept_open(self) -> httpcore.AsyncHTTPConnection | None:
        while self._idle:
            connection = self._idle.pop()
            if not connection.has_expired():
                return connection
            await connection.aclose()
        return None

    def _asked(self, method: str, path: str, body: Json | None) -> httpcore.Request:
        content = b"" if body is None else written(body)
        length = [(b"content-length", b"%d" % len(content))] if content else []
        headers = [*self._headers, *length]
        return httpcore.Request(method, self._at(path), headers=headers, content=content, extensions=self._extensions)

    def _at(self, path: str) -> httpcore.URL:
        if path not in self._urls:
            url = httpx.URL(self.url + path)
            self._urls[path] = httpcore.URL(
                scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path
            )
        return self._urls[path]

    async def _over_a_connection(self, request: httpcore.Request, path: str, parse: Parse) -> Json:
        """One exchange over a connection, which is kept for the next one if it can serve it.

        No pool, in which httpx looks at all connections for each request, and no client, as cookies, redirects and
        credentials of a URL are none of a server engine's business: each costs a fifth of a request.
        """
        connection = await self._kept_open() or self._new_connection()
        try:
            return await self._answered(connection, request, path, parse)
        finally:
            if connection.is_available():
                self._idle.append(connection)
            else:
                await connection.aclose()

    async def _answered(
        self, connection: httpcore.AsyncHTTPConnection, request: httpcore.Request, path: str, parse: Parse
    ) -> Json:
        response = await connection.handle_async_request(request)
        try:
            if 300 <= response.status < 400:
                raise EngineError(
                    f"{self.url}{path}: the server sends on to {self._hidden(_header(response, 'location') or '?')!r},"
                    " which is not followed. Give the URL of the server itself."
                )
            text = await self._read(response, path)
        finally:
            await response.aclose()
        if response.status in RETRIED:
            raise _MayPassError(
                self._said(response, text),
                status=response.status,
                said=self._shown(text),
                retry_after=_retry_after(_header(response, "retry-after")),
            )
        if not 200 <= response.status < 300:
            raise StatusError(
                f"{self.url}{path}: {self._said(response, text)}", status=response.status, said=self._shown(text)
            )
        return self._parsed(text, response, path, parse)

    async def _read(self, response: httpcore.Response, path: str) -> bytes:
        parts: list[bytes] = []
        size = 0
        async for part in _decoded(response):
            parts.append(part)
            size += len(part)
            if size > MOST_BYTES:
                raise EngineError(
                    f"{self.url}{path}: the answer does not end; {MOST_BYTES >> 20} MiB were read. See what is behind "
                    "this URL."
                )
        return b"".join(parts)

    def _parsed(self, text: bytes, response: httpcore.Response, path: str, parse: Parse) -> Json:
        if not text or text.isspace():
            return {}
        try:
            answer = parse(text)
        except ValueError as error:
            kind = _header(response, "content-type")
            if kind.startswith("text/"):
                raise EngineError(
                    f"{self.url}{path}: the answer is no JSON but {kind}: {self._shown(text)} See what is behind this "
                    "URL."
                ) from error
            raise _MayPassError(f"the answer is no JSON ({error}): {self._shown(text)}") from error
        if not isinstance(answer, dict):
            raise EngineError(f"{self.url}{path}: the answer is no JSON object: {self._shown(text)}")
        return answer

    def _said(self, response: httpcore.Response, text: bytes) -> str:
        reason = response.extensions.get("reason_phrase", b"").decode("ascii", errors="replace")
        return f"status {response.status}: {self._shown(text) or reason}"

    def _shown(self, text: bytes) -> str:
        plain = visible(self._hidden(text[: 2 * _SHOWN].decode("utf-8", errors="replace")))
        return plain[:_SHOWN] + ("…" if len(plain) > _SHOWN or len(text) > 2 * _SHOWN else "")

    def _hidden(self, text: str) -> str:
        """Some servers repeat the key that they refuse."""
        return text.replace(self._key, "***") if self._key else text

    def _new_connection(self) -> httpcore.AsyncHTTPConnection:
        return httpcore.AsyncHTTPConnection(self._at("").origin, ssl_context=self._ssl)

    async def _closed(self) -> None:
        self._start()  # what was submitted just before
        # ours alone: a task inside the library ends with the one that it belongs to
        await _given_up(self._tasks)
        # and what is left: a task that an engine's coroutine started and did not wait for holds a connection
        while left := asyncio.all_tasks() - {asyncio.current_task()}:
            await _given_up(left)
        for connection in self._idle:
            await connection.aclose()
        await self._loop.shutdown_asyncgens()


class _Body(httpx.AsyncByteStream):
    """The bytes of an answer as httpx takes them."""

    def __init__(self, response: httpcore.Response) -> None:
        self._response = response

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._response.aiter_stream()


def _decoded(response: httpcore.Response) -> AsyncIterator[bytes]:
    """The body in parts, its content encoding taken off. httpx is asked only where there is one: it costs a tenth."""
    encoding = _header(response, "content-encoding")
    if encoding in ("", "identity"):
        return response.aiter_stream()
    headers = {"content-encoding": encoding}
    return httpx.Response(response.status, headers=headers, stream=_Body(response)).aiter_bytes()


def _header(response: httpcore.Response, name: str) -> str:
    """The value of an answer's header; empty if it has none. name: in lower case."""
    wanted = name.encode()
    return ", ".join(value.decode("latin-1") for key, value in response.headers if key.lower() == wanted)


class _MayPassError(Exception):
    """What may go better next time."""

    def __init__(self, message: str, *, status: int = 0, said: str = "", retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.status = status
        self.said = said
        self.retry_after = retry_after


def _result(future: Future[T]) -> T:
    """What it returns. Whoever is interrupted while waiting gives it up."""
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


async def _given_up(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks of this loop; returns when they have ended."""
    given_up = list(tasks)
    for task in given_up:
        task.cancel()
    await asyncio.gather(*given_up, return_exceptions=True)


def _backoff(attempt: int) -> float:
    """Seconds: half to all of 0.5, 1, 2 ... so that many clients do not come back at once."""
    return min(0.5 * 2.0**attempt, LONGEST_WAIT) * random.uniform(0.5, 1.0)  # noqa: S311 - a wait is no secret


def _retry_after(given: str) -> float:
    """Seconds, from a number or a date; 0 where the server says neither."""
    try:
        seconds = float(given)
    except ValueError:
        try:
            seconds = (parsedate_to_datetime(given) - datetime.now(UTC)).total_seconds()
        except (ValueError, TypeError):  # no date, or one without a zone
            return 0.0
    return seconds if math.isfinite(seconds) and seconds > 0 else 0.0
