"""Scoring over HTTP: throughput against a bare client, client CPU, and memory with a thousand rollouts in flight.

    python benchmarks/server_throughput.py            # against a stand-in server
    python benchmarks/server_throughput.py URL        # against a real vLLM

Must hold: through engine, workflow and run directory at least 90 % of the tokens per second of the fastest bare client,
which sends bodies made beforehand, parses the JSON of the answer and does nothing else, at the same concurrency (median
of 5 interleaved runs, each beside its own); under 400 MB at the peak with 1,000 rollouts of 1,000 tokens in flight. The
stand-in is a process of its own that sends answers made beforehand. Three bare clients are shown: one httpx.AsyncClient
with a pool, as one writes it at first; an httpx.AsyncHTTPTransport for each connection, the fastest that httpx makes;
and the parts that ours is built of, an httpcore.AsyncHTTPConnection each and orjson. Exit status 1 if it does not hold.
"""

from __future__ import annotations

import asyncio
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpcore
import httpx
import numpy as np
import orjson
from pydantic_core import from_json

from judge_memory import peak_mb
from onepolicy.engines.contract import ScoreInput
from onepolicy.engines.requests import written
from onepolicy.engines.spec import parse_spec
from onepolicy.integrations import open_engine
from onepolicy.integrations.vllm.request import scoring
from onepolicy.records.manifest import Manifest
from onepolicy.records.protocol import SamplingProtocol
from onepolicy.records.rollout import Rollout, Span
from onepolicy.records.run import Run
from onepolicy.version import VERSION
from onepolicy.workflow.progress import Silent
from onepolicy.workflow.score import ScoreRequest, score_with

LENGTH, PROMPT, CONCURRENCY, REPEATS = 1000, 100, 32, 5
SHARE, MOST_MB = 0.9, 400.0
HEADERS = {"content-type": "application/json"}
FIRST_ID = 1000
"""of rollout 0; each rollout begins with an id of its own, by which the stand-in knows it"""


class Measured(NamedTuple):
    """One run."""

    tokens_per_second: float
    cpu_per_1000: float
    """seconds of this process's CPU for 1,000 tokens"""


def main() -> int:
    url = sys.argv[1] if len(sys.argv) > 1 else ""
    rollouts = 24 if url else 6000
    with tempfile.TemporaryDirectory() as folder:
        if url:
            return 0 if _compare(url, Path(folder), rollouts) >= SHARE else 1
        with _stand_in() as standing:
            share = _compare(standing, Path(folder), rollouts)
        peak = _peak_of_many_in_flight(Path(folder))
    print(f"limits: {SHARE:.0%} of the faster bare client, {MOST_MB:.0f} MB")
    return 0 if share >= SHARE and peak < MOST_MB else 1


def _compare(url: str, folder: Path, rollouts: int) -> float:
    model = httpx.get(f"{url}/v1/models").json()["data"][0]["id"]
    inputs = [_input(i) for i in range(rollouts)]
    bodies = [written(scoring(item, model=model, top=0)) for item in inputs]
    for client in BARE.values():
        _bare(url, bodies[:64], client)
    measured = []
    for repeat in range(REPEATS):
        run = _run(folder / str(repeat), inputs)
        measured.append((*(_bare(url, bodies, client) for client in BARE.values()), _ours(url, run)))
        print("  " + ", ".join(f"{one.tokens_per_second:,.0f} tokens/s" for one in measured[-1]), flush=True)
    for name, side in zip((*BARE, "onepolicy"), zip(*measured, strict=True), strict=True):
        speed, cpu = (statistics.median(values) for values in zip(*side, strict=True))
        print(f"{name:36s} {speed:12,.0f} tokens/s, {cpu * 1000:.2f} ms CPU per 1,000 tokens")
    shares = {
        name: statistics.median(ours.tokens_per_second / bare[which].tokens_per_second for *bare, ours in measured)
        for which, name in enumerate(BARE)
    }
    print(f"{CONCURRENCY} at once, {rollouts} rollouts of {LENGTH} tokens; share of each bare client:")
    print("\n".join(f"  {name:36s} {share:.1%}" for name, share in shares.items()))
    return min(shares.values())


def _bare(
    url: str, bodies: list[bytes], client: Callable[[str, Iterator[bytes]], Coroutine[Any, Any, None]]
) -> Measured:
    start, cpu = time.perf_counter(), time.process_time()
    asyncio.run(client(url, iter(bodies)))
    return _measured(start, cpu, len(bodies))


async def _pooled(url: str, waiting: Iterator[bytes]) -> None:
    limits = httpx.Limits(max_connections=CONCURRENCY, max_keepalive_connections=CONCURRENCY)
    async with httpx.AsyncClient(base_url=url, headers=HEADERS, limits=limits, timeout=600) as client:

        async def asking() -> None:
            for body in waiting:
                answer = await client.post("/v1/completions", content=body)
                assert from_json(answer.content)["choices"]

        await asyncio.gather(*(asking() for _ in range(CONCURRENCY)))


async def _apart(url: str, waiting: Iterator[bytes]) -> None:
    context, to = httpx.create_ssl_context(), httpx.URL(f"{url}/v1/completions")

    async def asking() -> None:
        async with httpx.AsyncHTTPTransport(verify=context) as transport:
            for body in waiting:
                answer = await transport.handle_async_request(httpx.Request("POST", to, headers=HEADERS, content=body))
                assert from_json(await answer.aread())["choices"]

    await asyncio.gather(*(asking() for _ in range(CONCURRENCY)))


async def _of_our_parts(url: str, waiting: Iterator[bytes]) -> None:
    to = httpcore.URL(f"{url}/v1/completions")
    always = [(b"host", httpx.URL(url).netloc), (b"content-type", b"application/json")]

    async def asking() -> None:
        async with httpcore.AsyncHTTPConnection(to.origin) as connection:
            for body in waiting:
                headers = [*always, (b"content-length", b"%d" % len(body))]
                answer = await connection.handle_async_request(
                    httpcore.Request("POST", to, headers=headers, content=body)
                )
                text = await answer.aread()
                await answer.aclose()
                assert orjson.loads(text)["choices"]

    await asyncio.gather(*(asking() for _ in range(CONCURRENCY)))


BARE = {
    "httpx, one client with a pool": _pooled,
    "httpx, a transport each": _apart,
    "httpcore, a connection each, orjson": _of_our_parts,
}


def _ours(url: str, run: Run) -> Measured:
    spec = parse_spec(f"vllm:{url}?concurrency={CONCURRENCY}")
    engine = open_engine(spec)
    try:
        assert engine.info.name == "vllm"
        start, cpu = time.perf_counter(), time.process_time()
        score_with(engine, run, ScoreRequest(engine=spec), progress=Silent())
        return _measured(start, cpu, run.manifest.planned_rollouts)
    finally:
        engine.close()


def _measured(start: float, cpu: float, rollouts: int) -> Measured:
    tokens = rollouts * LENGTH
    seconds, used = time.perf_counter() - start, time.process_time() - cpu
    return Measured(tokens / seconds, used / tokens * 1000)


def _ids(number: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    ids = np.random.default_rng(0).integers(300, 40_000, LENGTH).astype(np.int32)
    ids[0] = FIRST_ID + number
    return ids


def _input(number: int) -> ScoreInput:
    return ScoreInput(rollout_id=f"r{number}", token_ids=_ids(number), wanted=np.arange(LENGTH) >= PROMPT)


def _run(path: Path, inputs: list[ScoreInput]) -> Run:
    manifest = Manifest(
        tool_version=VERSION,
        status="recording",
        kind="fresh",
        suite="synthetic",
        suite_hash="0",
        protocol=SamplingProtocol(max_new_tokens=LENGTH - PROMPT),
        rollout_engine="fake:synthetic",
        planned_rollouts=len(inputs),
    )
    run = Run.create(path, manifest)
    run.write_rollouts(
        [
            Rollout(
                rollout_id=item.rollout_id,
                prompt_id=item.rollout_id,
                trajectory_id=item.rollout_id,
                token_ids=item.token_ids,
                sampled=item.wanted,
                loss_mask=item.wanted,
            )
            for item in inputs
        ],
        [Span(rollout_id=item.rollout_id, start=PROMPT, end=LENGTH) for item in inputs],
    )
    run.complete()
    return run


def _peak_of_many_in_flight(folder: Path) -> float:
    rollouts = 1000
    _run(folder / "many", [_input(i) for i in range(rollouts)])
    with _stand_in(hold=rollouts) as url:
        done = subprocess.run(
            [sys.executable, __file__, "--many", url, str(folder / "many")], capture_output=True, text=True, check=True
        )
    peak = float(done.stdout)
    print(f"{rollouts} rollouts of {LENGTH} tokens in flight: peak {peak:.0f} MB")
    return peak


def _many(url: str, path: Path) -> None:
    spec = parse_spec(f"vllm:{url}?concurrency=1000")
    engine = open_engine(spec)
    try:
        score_with(engine, Run.open(path), ScoreRequest(engine=spec), progress=Silent())
    finally:
        engine.close()
    print(peak_mb())


# -- the stand-in ---------------------------------------------------------------------------------------------------


@contextmanager
def _stand_in(*, hold: int = 0) -> Iterator[str]:
    """A server in a process of its own. hold: it answers whole sequences only when so many are there."""
    server = subprocess.Popen(
        [sys.executable, __file__, "--serve", str(hold)], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
    finally:
        server.terminate()
        server.wait()
        for pipe in (server.stdout, server.stdin):
            assert pipe is not None
            pipe.close()


class _Server(asyncio.Protocol):
    """HTTP for one connection, as little of it as there is: requests with a content length, one after the other."""

    first = re.compile(rb'"prompt":\s*\[(\d+)')
    held: list[tuple[asyncio.Transport, bytes]] = []  # noqa: RUF012 - of all connections
    hold = 0
    simple = {  # noqa: RUF012
        b"/v1/models": {"data": [{"id": "m", "max_model_len": 1 << 20}]},
        b"/version": {"version": "stand-in"},
    }

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport, self.buffer = transport, b""

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
            head = self.buffer[:end].lower()
            found = re.search(rb"content-length: (\d+)", head)
            size = end + 4 + (int(found[1]) if found else 0)
            if len(self.buffer) < size:
                return
            body, self.buffer = self.buffer[end + 4 : size], self.buffer[size:]
            self.answer(head.split(b" ", 2)[1], body)

    def answer(self, path: bytes, body: bytes) -> None:
        if path != b"/v1/completions":
            self.send(json.dumps(self.simple[path]).encode()) if path in self.simple else self.refuse()
        elif (number := self.first.search(body)) and int(number[1]) >= FIRST_ID and body.count(b",") > LENGTH:
            self.held.append((self.transport, number[1]))
            if len(self.held) >= self.hold:
                for transport, first in self.held:
                    send(transport, BEFORE + first + AFTER)
                self.held.clear()
        else:
            self.send(json.dumps(short(json.loads(body))).encode())

    def refuse(self) -> None:
        self.transport.write(b"HTTP/1.1 404 Not Found\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}")

    def send(self, body: bytes) -> None:
        send(self.transport, body)


def send(transport: asyncio.Transport, body: bytes) -> None:
    transport.write(
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)
    )


def short(body: dict[str, Any]) -> dict[str, Any]:
    """An answer to a probe or a canary: the same four tokens, sharper at another temperature."""
    top = {f"token_id:{i}": lp / 1.0 for i, lp in enumerate((-1.0, -1.5, -2.0, -2.5))}
    ids = body["prompt"]
    scored = [None, *({str(i): {"logprob": -2.0, "rank": 3, "decoded_token": "x"}} for i in ids[1:])]
    return {
        "model": "m",
        "choices": [
            {
                "index": 0,
                "text": "x",
                "finish_reason": "length",
                "prompt_token_ids": ids,
                "token_ids": [0],
                "logprobs": {"tokens": ["token_id:0"], "token_logprobs": [-1.0], "top_logprobs": [top]},
                "prompt_logprobs": scored if body.get("prompt_logprobs") is not None else None,
            }
        ],
        "usage": {"prompt_tokens": len(ids)},
    }


def whole() -> tuple[bytes, bytes]:
    """The body that answers a scored rollout, before and after its first id."""
    ids, rng = _ids(0).tolist(), np.random.default_rng(1)
    values = np.round(-rng.exponential(1.5, LENGTH), 7).tolist()
    scored = [
        {str(i): {"logprob": lp, "rank": 3, "decoded_token": " word"}} for i, lp in zip(ids[1:], values, strict=False)
    ]
    answer = short({"prompt": ["FIRST", *ids[1:]]})
    answer["choices"][0]["prompt_logprobs"] = [None, *scored]
    # as compact as vLLM writes it
    before, after = json.dumps(answer, separators=(",", ":")).encode().split(b'"FIRST"')
    return before, after


async def _serve(hold: int) -> None:
    _Server.hold = hold
    server = await asyncio.get_running_loop().create_server(_Server, "127.0.0.1", 0, backlog=2048)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    # ends with whoever started it
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        BEFORE, AFTER = whole()
        asyncio.run(_serve(int(sys.argv[2])))
    elif sys.argv[1:2] == ["--many"]:
        _many(sys.argv[2], Path(sys.argv[3]))
    else:
        sys.exit(main())
