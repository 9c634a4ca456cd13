"""Large JSONL files, read by several processes: Python makes the objects of a line on one core at a time.

The files are cut into parts (`dumps.parts`), and each part is read in a process of its own by the same code that would
read it here. Blocks come in the order of the file, and so does the first error.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass

from onepolicy.dumps.block import RecordedBlock
from onepolicy.dumps.file import DumpFile
from onepolicy.dumps.parts import PART_BYTES, SCAN
from onepolicy.dumps.source import Part
from onepolicy.errors import DumpError
from onepolicy.workflow.reading_channel import PartRead, receive, widen

MOST_WORKERS = 4
"""a process more would wait: the measuring of what four read takes longer than their reading"""
WAITING = 2
"""parts per process that are read or wait to be used: memory for about ten megabytes each"""
_SHOWN = 4000
"""characters of what a process printed last"""


def usable_cores() -> int:
    """Of this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How the JSONL of a recording is spread over processes. What is read is the same, whatever stands here."""

    workers: int | None = None
    """None: one for each usable core, `MOST_WORKERS` at most; below 2 all is read in this process"""
    from_bytes: int = 32 << 20
    """of all JSONL files of a recording; less is read before a process has started"""
    part_bytes: int = PART_BYTES

    @property
    def processes(self) -> int:
        """To be started; 0 if all is read here."""
        count = min(usable_cores(), MOST_WORKERS) if self.workers is None else self.workers
        return count if count > 1 else 0

    def is_split(self, files: Sequence[DumpFile]) -> bool:
        """Whether the plain JSONL among these files is worth it."""
        return sum(file.size for file in files if is_plain_lines(file)) >= self.from_bytes


def is_plain_lines(file: DumpFile) -> bool:
    """JSONL that can be read from any place."""
    return file.kind == "jsonl" and file.source.is_plain


AS_IT_COMES = Spread()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Job:
    """Files that are read together, or one part of one file."""

    files: Sequence[DumpFile]
    part: Part | None = None

    @property
    def size(self) -> int:
        """Bytes of the part."""
        return 0 if self.part is None else self.part.end - self.part.start


class Workers:
    """Processes that read parts; as many threads, each of which speaks with one of them."""

    def __init__(self, *, format_name: str, columns: Mapping[str, str] | None, spread: Spread) -> None:
        self.count = spread.processes
        self.room = self.count * WAITING * (spread.part_bytes + SCAN)
        """bytes of the parts that are read or wait"""
        self._setup = {"name": format_name, "columns": dict(columns or {})}
        self._started: list[_Worker] = []
        self._own = threading.local()
        self._threads = ThreadPoolExecutor(max(self.count, 1), thread_name_prefix="reading lines")

    def submit(self, job: Job) -> Future[PartRead]:
        """Have a part read."""
        assert job.part is not None, "whole files are read here"
        return self._threads.submit(self._read, job.files[0], job.part)

    def close(self) -> None:
        """End the processes, whatever they do: nobody waits for what they read."""
        for worker in list(self._started):
            worker.process.kill()
        self._threads.shutdown(cancel_futures=True)
        for worker in self._started:  # one may have been started meanwhile
            worker.end()

    def _read(self, file: DumpFile, part: Part) -> PartRead:
        worker: _Worker | None = getattr(self._own, "worker", None)
        if worker is None:
            worker = self._own.worker = _Worker(self._setup)
            self._started.append(worker)
        return worker.read(file, part)


class _Worker:
    """A process, as its parent sees it."""

    def __init__(self, setup: Mapping[str, object]) -> None:
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115  closed in `end`
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "onepolicy.workflow.reading_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._printed,
            env=_environment(),
            start_new_session=True,  # Ctrl-C is for the parent, which ends it
        )
        assert self.process.stdin is not None and self.process.stdout is not None, "pipes were asked for"  # noqa: PT018
        self._requests, self._answers = self.process.stdin, self.process.stdout
        widen(self._answers)
        self._setup: Mapping[str, object] | None = setup

    def read(self, file: DumpFile, part: Part) -> PartRead:
        """What the process makes of a part. Raises: DumpError if it was killed, RuntimeError if it failed."""
        asked = [] if self._setup is None else [self._setup]
        self._setup = None
        asked.append({"location": file.location, "label": file.label, "part": asdict(part)})
        try:
            self._requests.write(b"".join(json.dumps(line).encode() + b"\n" for line in asked))
            self._requests.flush()
            return receive(self._answers)
        except (BrokenPipeError, EOFError):
            raise self._death(f"{file.name}, after line {part.lines_before}") from None

    def end(self) -> None:
        """Kill it and wait for it."""
        self.process.kill()
        self.process.wait()
        for stream in (self._answers, self._printed):
            stream.close()
        with contextlib.suppress(BrokenPipeError):  # a request that it did not live to read
            self._requests.close()

    def _death(self, where: str) -> Exception:
        code = self.process.wait()
        if code < 0:
            hint = ", as the kernel does when memory runs out" if -code == signal.SIGKILL else ""
            return DumpError(
                f"{where}: the process that read it was killed by {signal.Signals(-code).name}{hint}. Nothing of it "
                "was used. Run it again, with more memory or with files of shorter lines."
            )
        self._printed.seek(0)
        said = self._printed.read().decode("utf-8", "replace")[-_SHOWN:]
        return RuntimeError(f"{where}: the process that read it exited with status {code}:\n{said}")


def _environment() -> dict[str, str]:
    """Finds the same packages as this process; one thread; keeps the memory of a part for the next one."""
    single = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    kept = dict.fromkeys(("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"), str(1 << 30))  # of glibc
    path = os.pathsep.join(folder or os.getcwd() for folder in sys.path)
    return {**os.environ, **single, **kept, "PYTHONPATH": path}


def in_order(
    jobs: Iterator[Job], workers: Workers, here: Callable[[Job], Iterator[RecordedBlock]], done: Callable[[Job], None]
) -> Iterator[RecordedBlock]:
    """The blocks of all jobs. `here` reads what is no part, `done` hears of each part that was used up.

    Raises: what reading a job raises, after the blocks of all before it; so also what making the jobs raises.
    """
    waiting: deque[tuple[Job, Future[PartRead]]] = deque()
    try:
        failed: list[DumpError] = []
        for job in _until_it_fails(jobs, failed):
            while waiting and (job.part is None or _is_full(waiting, job, workers)):
                yield from _used(*waiting.popleft(), done)
            if job.part is None or not workers.count:
                yield from here(job)
            else:
                waiting.append((job, workers.submit(job)))
        while waiting:
            yield from _used(*waiting.popleft(), done)
        if failed:
            raise failed[0]
    finally:
        workers.close()


def _until_it_fails(jobs: Iterator[Job], failed: list[DumpError]) -> Iterator[Job]:
    """The jobs are made ahead of those that are read, and what comes first in the files is said first."""
    try:
        yield from jobs
    except DumpError as error:
        failed.append(error)


def _is_full(waiting: Sequence[tuple[Job, Future[PartRead]]], job: Job, workers: Workers) -> bool:
    """A part with a very long line waits until it is alone."""
    held = sum(other.size for other, _ in waiting)
    return len(waiting) >= WAITING * workers.count or held + job.size > workers.room


def _used(job: Job, coming: Future[PartRead], done: Callable[[Job], None]) -> Iterator[RecordedBlock]:
    read = coming.result()
    yield from read.blocks
    if read.error is not None:
        raise read.error
    done(job)
