"""Whatever a server does, the client ends with JSON or with an error that says what to do."""

import asyncio
import gzip
import json
import math
import os
import threading
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import numpy as np
import pytest
from scripted import Answer

from onepolicy.engines import http
from onepolicy.engines.http import HttpClient, ServerOptions, StatusError
from onepolicy.engines.requests import checked_url
from onepolicy.errors import EngineError, UsageError

KEY = "sk-never-to-be-seen"


@pytest.fixture
def connect():
    """A client that ends with the test."""
    opened = []

    def to(server, **options):
        url = server if isinstance(server, str) else server.url
        opened.append(HttpClient(url, ServerOptions(**({"retries": 2} | options))))
        return opened[-1]

    yield to
    for one in opened:
        one.close()


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """Retries follow at once, but for those that a server asks to be later."""
    monkeypatch.setattr(http, "_backoff", lambda attempt: 0.001)


def after(failures, *, failure):
    """Answers `failure` so many times, then what is right."""
    left = [failures]
    lock = threading.Lock()

    def respond(handler, request):
        with lock:
            left[0] -= 1
            return failure if left[0] >= 0 else Answer(b'{"ok": 1}')

    return respond


def test_what_is_sent_and_what_comes_back_is_json(scripted, connect):
    server = scripted(lambda handler, request: Answer(b'{"got": ' + (request.body or b"0") + b"}"))
    client = connect(server)
    assert client.post("/x", {"prompt": [1, 2], "t": 0.5}) == {"got": {"prompt": [1, 2], "t": 0.5}}
    assert client.get("/y") == {"got": 0}
    assert [(r.method, r.path) for r in server.requests] == [("POST", "/x"), ("GET", "/y")]
    assert server.requests[0].headers["content-type"] == "application/json"


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
def test_a_status_that_may_pass_is_tried_again(status, scripted, connect):
    server = scripted(after(2, failure=Answer(b'{"error": "busy"}', status)))
    assert connect(server).post("/x", {}) == {"ok": 1}
    assert len(server.requests) == 3


def test_a_busy_server_that_stays_busy_is_an_error_with_its_words_and_the_way_on(scripted, connect):
    server = scripted(lambda *_: Answer(b'{"error": "overloaded"}', 503))
    with pytest.raises(EngineError, match=r"http://127.+/x: status 503: .*overloaded.* \(3 tries in .*--resume"):
        connect(server).post("/x", {})
    assert len(server.requests) == 3


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 413, 422, 501, 505])
def test_a_refusal_is_not_tried_again(status, scripted, connect):
    server = scripted(lambda *_: Answer(b'{"message": "no such thing"}', status))
    with pytest.raises(StatusError, match=f"status {status}: .*no such thing") as caught:
        connect(server).post("/x", {})
    assert caught.value.status == status
    assert caught.value.unknown_path == (status in (404, 405, 501))
    assert len(server.requests) == 1


def test_whether_a_path_is_there_is_known_from_a_refusal_and_from_nothing_else(scripted, connect):
    server = scripted(lambda _, request: Answer(status={"/here": 200, "/not": 404}.get(request.path, 503)))
    client = connect(server)
    assert (client.has("/here"), client.has("/not")) == (True, False)
    with pytest.raises(EngineError, match="status 503"):
        client.has("/busy")


def test_a_server_is_given_the_time_that_it_asks_for(scripted, connect):
    asked = Answer(b"{}", 429, {"retry-after": "0.3"})
    server = scripted(after(1, failure=asked))
    start = time.monotonic()
    assert connect(server).post("/x", {}) == {"ok": 1}
    assert time.monotonic() - start >= 0.3


@pytest.mark.parametrize(
    ("given", "low", "high"),
    [
        ("7", 7, 7),
        ("1.5", 1.5, 1.5),
        ("Wed, 21 Oct 2037 07:28:00", 0, 0),
        ("", 0, 0),
        ("soon", 0, 0),
        ("-3", 0, 0),
        ("inf", 0, 0),
        ("nan", 0, 0),
        ("²", 0, 0),
    ],
)
def test_the_time_asked_for_is_a_number_or_a_date(given, low, high):
    assert low <= http._retry_after(given) <= high


@pytest.mark.parametrize(("ahead", "low", "high"), [(600, 500, 600), (-600, 0, 0)])
def test_a_date_is_as_long_as_it_takes_until_then(ahead, low, high):
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=ahead), usegmt=True)
    assert low <= http._retry_after(date) <= high


def test_no_server_makes_the_client_wait_for_ever(scripted, connect, monkeypatch):
    monkeypatch.setattr(http, "LONGEST_WAIT", 0.01)
    server = scripted(after(1, failure=Answer(b"{}", 503, {"retry-after": "86400"})))
    assert connect(server).post("/x", {}) == {"ok": 1}


def test_waits_double_and_are_drawn_at_random(monkeypatch):
    monkeypatch.undo()
    waits = [[http._backoff(attempt) for _ in range(50)] for attempt in range(8)]
    for attempt, drawn in enumerate(waits):
        most = min(0.5 * 2**attempt, http.LONGEST_WAIT)
        assert most / 2 <= min(drawn) < max(drawn) <= most


def test_a_burst_of_refusals_does_not_fail_many_requests_at_once(scripted, connect):
    server = scripted(after(60, failure=Answer(b"{}", 429)))
    client = connect(server, retries=6, concurrency=16)
    waiting = [client.submit(client.request("POST", "/x", {"i": i})) for i in range(64)]
    assert [one.result() for one in waiting] == [{"ok": 1}] * 64


def test_no_more_requests_are_in_flight_than_were_allowed(scripted, connect):
    lock, now, most = threading.Lock(), [0], [0]

    def respond(handler, request):
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.01)
        with lock:
            now[0] -= 1
        return Answer()

    client = connect(scripted(respond), concurrency=3)
    for one in [client.submit(client.request("POST", "/x", {})) for _ in range(24)]:
        one.result()
    assert most == [3]


def test_what_is_asked_aside_does_not_wait_behind_what_is_queued(scripted, connect):
    held = threading.Event()

    def respond(handler, request):
        if request.path == "/slow":
            held.wait(20)
        return Answer()

    client = connect(scripted(respond), concurrency=2)
    slow = [client.submit(client.request("GET", "/slow")) for _ in range(6)]
    with http.aside():
        assert client.get("/quick") == {}
    assert not any(one.done() for one in slow)
    held.set()
    assert [one.result() for one in slow] == [{}] * 6


def test_a_connection_that_breaks_is_tried_again(scripted, connect):
    server = scripted(after(2, failure=None))
    assert connect(server).post("/x", {}) == {"ok": 1}


def test_a_connection_that_the_server_closed_meanwhile_is_no_failure(scripted, connect):
    def respond(handler, request):
        handler.close_connection = True  # without a header that says so
        return Answer(b'{"ok": 1}')

    server = scripted(respond)
    client = connect(server, retries=0)
    for _ in range(5):
        assert client.post("/x", {}) == {"ok": 1}
        time.sleep(0.05)


def test_an_answer_that_is_cut_short_is_tried_again(scripted, connect):
    cut = Answer(b'{"ok": ', headers={"content-length": "100", "connection": "close"})

    def respond(handler, request):
        handler.close_connection = True
        return answers(handler, request)

    answers = after(1, failure=cut)
    assert connect(scripted(respond)).post("/x", {}) == {"ok": 1}


def test_json_that_ends_in_the_middle_is_tried_again(scripted, connect):
    assert connect(scripted(after(2, failure=Answer(b'{"ok": [1, 2')))).post("/x", {}) == {"ok": 1}


def test_json_that_always_ends_in_the_middle_is_an_error(scripted, connect):
    with pytest.raises(EngineError, match=r"the answer is no JSON .*\{\"ok\": \[1, 2 \(3 tries"):
        connect(scripted(lambda *_: Answer(b'{"ok": [1, 2'))).post("/x", {})


def test_a_web_page_is_no_answer_and_is_not_asked_for_again(scripted, connect):
    server = scripted(lambda *_: Answer(b"<html>Sign in</html>", headers={"content-type": "text/html"}))
    with pytest.raises(EngineError, match=r"no JSON but text/html: <html>Sign in.*See what is behind this URL"):
        connect(server).post("/x", {})
    assert len(server.requests) == 1


@pytest.mark.parametrize("text", [b"[]", b"3", b'"yes"', b"null", b"true", b"[[[[]]]]"])
def test_json_that_is_no_object_is_an_error(text, scripted, connect):
    with pytest.raises(EngineError, match="no JSON object"):
        connect(scripted(lambda *_: Answer(text))).get("/x")


def test_an_empty_answer_is_an_empty_object(scripted, connect):
    assert connect(scripted(lambda *_: Answer(b""))).get("/health") == {}


def test_json_nested_without_end_is_an_error_and_no_crash(scripted, connect):
    with pytest.raises(EngineError, match="no JSON"):
        connect(scripted(lambda *_: Answer(b'{"a":' + b"[" * 100_000)), retries=0).get("/x")


def test_nan_and_infinity_come_through_to_be_judged_later(scripted, connect):
    found = connect(scripted(lambda *_: Answer(b'{"v": [NaN, -Infinity, Infinity, 1e999]}'))).get("/x")["v"]
    assert math.isnan(found[0])
    assert found[1:] == [-math.inf, math.inf, math.inf]


@pytest.mark.parametrize(
    "value", [math.nan, -math.inf, np.float64("nan"), [1.0, math.nan], (math.nan,), {"a": [math.inf]}]
)
def test_nan_is_never_sent(scripted, connect, value):
    server = scripted(lambda *_: Answer())
    with pytest.raises(ValueError, match="JSON"):
        connect(server).post("/x", {"temperature": value})
    assert server.requests == []


def test_a_text_that_speaks_of_nan_is_sent(scripted, connect):
    server = scripted(lambda *_: Answer())
    connect(server).post("/x", {"prompt": "NaN and Infinity, é"})
    assert json.loads(server.requests[-1].body) == {"prompt": "NaN and Infinity, é"}


def test_a_body_that_is_not_what_its_encoding_says_is_an_error(scripted, connect):
    server = scripted(lambda *_: Answer(b"no gzip", headers={"content-encoding": "gzip"}))
    with pytest.raises(EngineError, match="DecodingError"):
        connect(server).get("/x")


def test_a_compressed_answer_is_read(scripted, connect):
    packed = gzip.compress(b'{"ok": 1}')
    assert connect(scripted(lambda *_: Answer(packed, headers={"content-encoding": "gzip"}))).get("/x") == {"ok": 1}


def endless(handler, request):
    """Spaces for ever, as chunks; JSON may begin with any number of them."""
    handler.close_connection = True
    handler.send_response(200)
    handler.send_header("transfer-encoding", "chunked")
    handler.end_headers()
    while not handler.server.ended.is_set():
        handler.wfile.write(b"1000\r\n" + b" " * 4096 + b"\r\n")


def test_an_answer_without_an_end_is_an_error(scripted, connect, monkeypatch):
    monkeypatch.setattr(http, "MOST_BYTES", 1 << 20)
    server = scripted(endless)
    with pytest.raises(EngineError, match="the answer does not end; 1 MiB were read"):
        connect(server).get("/x")
    assert len(server.requests) == 1


def test_a_small_answer_that_becomes_endless_when_unpacked_is_an_error(scripted, connect, monkeypatch):
    monkeypatch.setattr(http, "MOST_BYTES", 1 << 20)
    bomb = gzip.compress(b" " * (16 << 20))
    with pytest.raises(EngineError, match="does not end"):
        connect(scripted(lambda *_: Answer(bomb, headers={"content-encoding": "gzip"}))).get("/x")


def trickle(handler, request):
    """A byte now and then: no single read takes long."""
    handler.close_connection = True
    handler.send_response(200)
    handler.send_header("content-length", "1000")
    handler.end_headers()
    while not handler.server.ended.wait(0.02):
        handler.wfile.write(b" ")
        handler.wfile.flush()


@pytest.mark.parametrize("slow", [trickle, lambda handler, request: handler.server.ended.wait(60) and None])
def test_a_server_that_is_too_slow_is_an_error_that_names_the_option(slow, scripted, connect):
    with pytest.raises(EngineError, match=r"/x: no whole answer within 0.3 s. Give it longer with \?timeout="):
        connect(scripted(slow), timeout=0.3).get("/x")


def test_waiting_for_its_turn_is_no_time_of_the_request(scripted, connect):
    client = connect(scripted(lambda *_: time.sleep(0.15) or Answer()), timeout=1.0, concurrency=1)
    waiting = [client.submit(client.request("GET", "/x")) for _ in range(10)]
    assert [one.result() for one in waiting] == [{}] * 10


def test_a_redirect_is_not_followed_and_carries_the_key_nowhere(scripted, connect, monkeypatch):
    monkeypatch.setenv("PROBE_KEY", KEY)
    other = scripted(lambda *_: Answer())
    server = scripted(lambda *_: Answer(b"", 307, {"location": f"{other.url}/x?key={KEY}"}))
    with pytest.raises(EngineError, match=r"sends on to 'http://127.*which is not followed") as caught:
        connect(server, key_env="PROBE_KEY").post("/x", {})
    assert other.requests == []
    assert KEY not in str(caught.value)


def test_nothing_listens_is_an_error_with_the_url(connect, closed_port):
    with pytest.raises(EngineError, match=rf"http://127.0.0.1:{closed_port}/x: .*onnect.*See whether the server is up"):
        connect(f"http://127.0.0.1:{closed_port}", retries=1).get("/x")


def test_something_that_speaks_no_http_is_an_error(scripted, connect):
    def rude(handler, request):
        handler.wfile.write(b"SSH-2.0-OpenSSH_9.6\r\n")

    with pytest.raises(EngineError, match="RemoteProtocolError"):
        connect(scripted(rude)).get("/x")


@pytest.mark.parametrize(
    "url",
    [
        "vllm",
        "ftp://host",
        "http://",
        "http://host:port",
        "http://host:99999",
        "http://[::1",
        "http://host\n.org",
        "http://host/?key=1",
        "http://host/#a",
    ],
)
def test_what_is_no_url_of_a_server_is_a_usage_error(url):
    with pytest.raises(UsageError):
        checked_url(url)


def test_a_url_with_a_password_is_refused_without_repeating_it():
    with pytest.raises(UsageError, match="carries a user or a password") as caught:
        checked_url(f"http://me:{KEY}@host:8000")
    assert KEY not in str(caught.value)


@pytest.mark.parametrize("host", ["a" * 300, "h ost", "a..b", "-x-.invalid"])
def test_a_host_that_cannot_be_found_is_an_error(host, connect):
    with pytest.raises(EngineError, match="See whether the server is up"):
        connect(f"http://{host}", retries=0).get("/x")


def test_a_path_behind_the_host_is_kept(scripted, connect):
    server = scripted(lambda *_: Answer())
    connect(f"{server.url}/behind/").get("/v1/models")
    assert server.requests[0].path == "/behind/v1/models"


def test_the_key_of_the_environment_is_sent_and_shown_nowhere(scripted, connect, monkeypatch):
    monkeypatch.setenv("PROBE_KEY", f" {KEY}\n")
    server = scripted(lambda _, request: Answer(json.dumps({"message": f"bad key {KEY}"}).encode(), 401))
    client = connect(server, key_env="PROBE_KEY")
    with pytest.raises(StatusError, match=r"bad key \*\*\*") as caught:
        client.post("/x", {})
    assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"
    assert KEY not in str(caught.value) + caught.value.said + str(ServerOptions(key_env="PROBE_KEY"))


def test_a_key_is_hidden_where_the_message_is_cut(scripted, connect, monkeypatch):
    monkeypatch.setenv("PROBE_KEY", KEY)
    server = scripted(lambda *_: Answer(b"x" * (http._SHOWN - 5) + KEY.encode() + b"y" * 900, 401))
    with pytest.raises(StatusError) as caught:
        connect(server, key_env="PROBE_KEY").get("/x")
    assert "sk-" not in str(caught.value)


@pytest.mark.parametrize("key", ["", "  ", "two\nlines", "schlüssel", "null\x00"])
def test_a_key_that_cannot_be_one_is_a_usage_error_that_does_not_show_it(key, monkeypatch):
    if "\x00" in key:
        monkeypatch.setattr(os, "environ", {"PROBE_KEY": key})
    else:
        monkeypatch.setenv("PROBE_KEY", key)
    before = threading.active_count()
    with pytest.raises(UsageError, match="PROBE_KEY") as caught:
        HttpClient("http://127.0.0.1:1", ServerOptions(key_env="PROBE_KEY"))
    assert not key.strip() or key not in str(caught.value)
    assert threading.active_count() == before


def test_proxies_of_the_environment_are_not_used(scripted, connect, monkeypatch, closed_port):
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{closed_port}")
    assert connect(scripted(lambda *_: Answer())).get("/x") == {}


def test_control_characters_of_a_server_do_not_reach_the_terminal(scripted, connect):
    server = scripted(lambda *_: Answer(b"\x1b[2J\x1b]0;owned\x07", 400))
    with pytest.raises(StatusError) as caught:
        connect(server).get("/x")
    assert "\x1b" not in str(caught.value)


def test_closing_gives_up_what_is_in_flight_and_may_be_done_twice(scripted, connect):
    server = scripted(lambda handler, _: handler.server.ended.wait(60) and None)
    client = connect(server)
    waiting = client.submit(client.request("GET", "/x"))
    while not server.requests:
        time.sleep(0.01)
    client.close()
    client.close()
    assert waiting.cancelled()
    assert not client._thread.is_alive()


def test_closing_ends_what_a_coroutine_started_and_did_not_wait_for(scripted, connect):
    """It would keep its connection open for ever."""
    server = scripted(lambda handler, _: handler.server.ended.wait(60) and None)
    client = connect(server)

    async def careless():
        return asyncio.create_task(client.request("GET", "/x"))

    left = client.call(careless())
    while not server.requests:
        time.sleep(0.01)
    client.close()
    assert left.cancelled()


def test_a_closed_client_refuses_what_it_is_asked(scripted, connect):
    client = connect(scripted(lambda *_: Answer()))
    client.close()
    with pytest.raises(RuntimeError, match=r"127.+client that is closed"):
        client.get("/x")


@pytest.mark.parametrize("headers", [{}, {"connection": "close"}], ids=["kept open", "opened anew"])
def test_a_request_that_is_cut_off_at_any_step_leaves_no_connection_that_nothing_can_use(headers, scripted, connect):
    client = connect(scripted(lambda *_: Answer(b'{"ok": 1}', headers=headers)), concurrency=1, timeout=20)

    async def cut_off(steps):
        request = asyncio.create_task(client.request("POST", "/x", {}))
        for _ in range(steps):
            await asyncio.sleep(0)
        request.cancel()
        await asyncio.wait([request])

    for steps in range(40):
        client.call(cut_off(steps))
        assert client.get("/y") == {"ok": 1}


def test_a_coroutine_of_the_client_may_not_wait_for_another(scripted, connect):
    client = connect(scripted(lambda *_: Answer()))
    other = client.request("GET", "/x")

    async def wrong():
        return client.call(other)

    with pytest.raises(AssertionError, match="waits for another"):
        client.call(wrong())
    other.close()
