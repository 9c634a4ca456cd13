"""Inputs -> what an engine answers, in parts that are written as soon as they are whole."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future
from contextlib import closing
from itertools import chain, islice
from queue import SimpleQueue
from typing import TypeVar

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
    try:
        for done in _done(waiting, submit, window, asked):
            for future in sorted(done, key=lambda one: one.exception() is not None):
                part[1].append(future.result())
                part[0].append(asked.pop(future))
            if len(part[0]) >= PART:
                whole, part = part, ([], [])
                yield whole, True
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
    answered: SimpleQueue[Future[OutT]] = SimpleQueue()  # `wait` would look at the whole window for each answer
    while True:
        for item in islice(waiting, window - len(asked)):
            future = submit(item)
            asked[future] = item
            future.add_done_callback(answered.put)
        if not asked:
            return
        yield [answered.get(), *(answered.get() for _ in range(answered.qsize()))]


def chunks(items: Iterable[InT], size: int) -> Iterator[list[InT]]:
    """Lists of at most `size` items."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk
