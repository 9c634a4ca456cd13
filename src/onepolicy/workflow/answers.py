"""Inputs -> what an engine answers, in parts that are written as soon as they are whole."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future
from contextlib import closing
from itertools import chain, islice
from typing import Generic, TypeVar

from onepolicy.engines.contract import Completion, Concurrent, Engine, SampleInput, Sampler, ScoreInput, Wanted
from onepolicy.errors import OnePolicyError
from onepolicy.records.protocol import SamplingProtocol
from onepolicy.records.reading import ReadingRow
from onepolicy.workflow.same_model import SameModel

InT = TypeVar("InT")
OutT = TypeVar("OutT")
Part = tuple[list[InT], list[OutT]]

PART = 64
"""answers of a concurrent engine that make a part of a run"""
SECONDS, MOST = 1.0, 256
"""a part that took less time waits for more answers, up to so many: each one is files and a question to the engine"""


def scored(
    engine: Engine, inputs: Iterable[ScoreInput], wanted: Wanted, same: SameModel
) -> Iterator[Part[ScoreInput, ReadingRow]]:
    """Parts of the inputs with their rows. What is answered when an engine fails comes out before the error."""
    if isinstance(engine, Concurrent):
        window = 2 * engine.concurrency
        yield from in_flight(inputs, lambda item: engine.submit_score(item, wanted), window=window, check=same.check)
        return
    for batch in chunks(inputs, engine.batch_size):
        yield batch, engine.score(batch, wanted)


def sampled(
    sampler: Sampler, inputs: Iterable[SampleInput], protocol: SamplingProtocol, wanted: Wanted, same: SameModel
) -> Iterator[Part[SampleInput, Completion]]:
    """Parts of the inputs with their completions, likewise."""
    if isinstance(sampler, Concurrent):
        yield from in_flight(
            inputs,
            lambda item: sampler.submit_sample(item, protocol, wanted),
            window=2 * sampler.concurrency,
            check=same.check,
        )
        return
    for batch in chunks(inputs, sampler.batch_size):
        yield batch, sampler.sample(batch, protocol, wanted)


def in_flight(
    inputs: Iterable[InT],
    submit: Callable[[InT], Future[OutT]],
    *,
    window: int,
    check: Callable[[], None] = lambda: None,
) -> Iterator[Part[InT, OutT]]:
    """Keep `window` inputs submitted, so that the engine never waits for the slowest of a batch or for the disk.

    An error or an interruption ends it; what was answered by then comes out first. check: called before the first input
    is submitted and again before each part comes out, but for the last one before an error, when there may be nothing
    left to ask.
    """
    waiting = iter(inputs)
    first = list(islice(waiting, 1))
    if not first:
        return
    check()
    with closing(_answered(chain(first, waiting), submit, window)) as parts:
        for part, is_whole in parts:
            if is_whole:
                check()
            yield part


def _answered(
    waiting: Iterator[InT], submit: Callable[[InT], Future[OutT]], window: int
) -> Generator[tuple[Part[InT, OutT], bool]]:
    """Parts, and whether nothing had gone wrong when they were."""
    asked: dict[Future[OutT], InT] = {}
    part: Part[InT, OutT] = ([], [])
    begun = time.monotonic()
    try:
        for done in _done(waiting, submit, window, asked):
            for future in sorted(done, key=lambda one: one.exception() is not None):
                part[1].append(future.result())
                part[0].append(asked.pop(future))
            if len(part[0]) >= (PART if time.monotonic() - begun > SECONDS else MOST):
                whole, part = part, ([], [])
                yield whole, True
                begun = time.monotonic()
        if part[0]:
            yield part, True
    except (OnePolicyError, KeyboardInterrupt):
        if part[0]:
            yield part, False
        raise
    finally:
        for future in asked:
            future.cancel()


def _done(
    waiting: Iterator[InT], submit: Callable[[InT], Future[OutT]], window: int, asked: dict[Future[OutT], InT]
) -> Iterator[list[Future[OutT]]]:
    """What was answered since the last time; `asked` is filled here, and emptied by whoever takes the answers."""
    answered = _Answered[OutT]()
    while True:
        for item in islice(waiting, window - len(asked)):
            future = submit(item)
            asked[future] = item
            future.add_done_callback(answered.add)
        if not asked:
            return
        yield answered.take(min(len(asked), window // 8 or 1))


class _Answered(Generic[OutT]):
    """Futures that are done: whoever takes them is woken for several at once, as a change of threads is dear.

    For one that failed, at once.
    """

    def __init__(self) -> None:
        self._futures: deque[Future[OutT]] = deque()
        self._enough = 1
        self._ready = threading.Event()

    def add(self, future: Future[OutT]) -> None:
        """From any thread."""
        self._futures.append(future)
        if len(self._futures) >= self._enough or future.cancelled() or future.exception() is not None:
            self._ready.set()

    def take(self, enough: int) -> list[Future[OutT]]:
        """Wait for so many, or for a failure, or for a while. Returns all that are there."""
        self._enough = enough
        if len(self._futures) < enough:
            self._ready.wait(SECONDS)
        self._ready.clear()
        return [self._futures.popleft() for _ in range(len(self._futures))]


def chunks(items: Iterable[InT], size: int) -> Iterator[list[InT]]:
    """Lists of at most `size` items."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk
