"""Ranks that the user started: `torchrun --nproc_per_node 2 -m onepolicy score RUN --engine callable:...`.

Every rank is a full onepolicy process. Rank 0 does the work; the others follow it: they receive each batch by
broadcast, call the function, and are done when rank 0 is. They never touch the run.

If a rank dies, rank 0 raises EngineError (exit status 2). torchrun also notices, ends the other processes,
possibly before rank 0 has said anything, prints a table of who failed, and reports its own exit status: 1.
"""

from __future__ import annotations

import atexit
import time
from datetime import timedelta

import torch
from torch import Tensor, distributed

from onepolicy.errors import EngineError
from onepolicy.integrations.callable.batch import Batch
from onepolicy.integrations.callable.departure import leave_process_group
from onepolicy.integrations.callable.function import UserFunction
from onepolicy.records.tokens import Float64

_BETWEEN_BATCHES = timedelta(days=7)
"""rank 0 may be busy with other things for as long as it likes"""
_MESSAGE_BYTES = 8192
_HALF = 4000
_AFTER_FAILURE = 5.0
"""seconds in which the others can come and hear of a failure, before the rank that has it gives up"""


class TorchrunRanks:
    """This process's part in the lock step.

    If the function's module made the default process group, it is used, and destroyed only at the exit of the
    interpreter; otherwise a gloo group is made, and destroyed by `close`. Messages go over a gloo group of
    their own in either case.
    """

    def __init__(self, function: UserFunction, *, timeout: float) -> None:
        self._function = function
        self._timeout = timeout
        self._made_default = not distributed.is_initialized()
        try:
            if self._made_default:
                distributed.init_process_group("gloo")
            self._group = distributed.new_group(backend="gloo", timeout=_BETWEEN_BATCHES)
        except RuntimeError as error:
            raise EngineError(f"callable:{function.name}: the ranks could not meet: {error}") from error
        self._rank = distributed.get_rank()
        self._count = distributed.get_world_size()
        self._in_step = True
        self.version = function.version
        self.takes_temperature = function.takes_temperature

    @property
    def is_follower(self) -> bool:
        """Whether this rank only follows rank 0."""
        return self._rank > 0

    def score(self, batch: Batch) -> list[Float64]:
        """Rank 0's logprobs, once all ranks are through. Raises EngineError naming the rank that failed."""
        assert not self.is_follower
        self._broadcast(batch)
        return self._step(batch)

    def follow(self) -> None:
        """Call the function for each batch until rank 0 is done. Raises EngineError as rank 0 does."""
        assert self.is_follower
        while (batch := self._broadcast(None)) is not None:
            self._step(batch)

    def close(self) -> None:
        """On rank 0, send the others home; on all, leave the process group, if it is not ours at the exit."""
        if self._in_step and not self.is_follower:
            self._broadcast(None)
        if self._made_default:
            leave_process_group()
        elif self._in_step:
            atexit.register(leave_process_group)
        self._in_step = False

    def _broadcast(self, batch: Batch | None) -> Batch | None:
        """Rank 0's batch; None when it is done."""
        message: list[Batch | None] = [batch]
        try:
            distributed.broadcast_object_list(message, src=0, group=self._group)
        except RuntimeError as error:
            self._in_step = False
            raise EngineError(f"{self._title}: another rank is gone: {error}") from error
        return message[0]

    def _step(self, batch: Batch) -> list[Float64]:
        logprobs: list[Float64] = []
        problem = ""
        try:
            if self.is_follower:
                self._function.answer(batch)
            else:
                logprobs = self._function.score(batch)
        except EngineError as error:
            problem = str(error)
        self._meet(batch, problem)
        return logprobs

    def _meet(self, batch: Batch, problem: str) -> None:
        """Wait for all ranks to be through. Raises EngineError on all of them if one is not."""
        deadline = time.monotonic() + (min(_AFTER_FAILURE, self._timeout) if problem else self._timeout)
        meet = self._report if self.is_follower else self._collect
        verdict = meet(problem, deadline)
        if verdict:
            self._in_step = False
            raise EngineError(f"callable:{self._function.name}, {batch.label}: {verdict}")

    def _collect(self, problem: str, deadline: float) -> str:
        """On rank 0: hear from every rank and tell all of them. Empty if all is well."""
        found = [f"rank 0 of {self._count}: {problem}"] if problem else []
        for rank in range(1, self._count):
            text = _text()
            try:
                _wait(distributed.irecv(text, src=rank, group=self._group), deadline)
                found += [f"rank {rank} of {self._count}: {_read(text)}"] if _read(text) else []
            except RuntimeError as error:
                found.append(f"rank {rank} of {self._count} is gone, or not through in time: {error}")
        verdict = "\n".join(found)
        self._tell(verdict)
        return verdict

    def _tell(self, verdict: str) -> None:
        for rank in range(1, self._count):
            try:
                work = distributed.isend(_text(verdict), dst=rank, group=self._group)
                _wait(work, time.monotonic() + (1.0 if verdict else self._timeout))
            except RuntimeError as error:
                if not verdict:
                    self._in_step = False
                    raise EngineError(f"{self._title}: rank {rank} is gone: {error}") from error

    def _report(self, problem: str, deadline: float) -> str:
        """On the others: tell rank 0, and hear what it found."""
        text = _text()
        try:
            _wait(distributed.isend(_text(problem), dst=0, group=self._group), deadline)
            _wait(distributed.irecv(text, src=0, group=self._group), deadline + _AFTER_FAILURE)
        except RuntimeError as error:
            silent = f"rank 0 of {self._count} is gone, or not through in time: {error}"
            return f"rank {self._rank} of {self._count}: {problem}" if problem else silent
        return _read(text)

    @property
    def _title(self) -> str:
        return f"callable:{self._function.name}, rank {self._rank} of {self._count}"


def _text(text: str = "") -> Tensor:
    """The text in a message of fixed length, cut in the middle of its traceback if it is longer."""
    content = text.encode()
    if len(content) > _MESSAGE_BYTES:
        content = content[:_HALF] + b"\n  ...\n" + content[-_HALF:]
    return torch.frombuffer(bytearray(content.ljust(_MESSAGE_BYTES, b"\0")), dtype=torch.uint8)


def _read(message: Tensor) -> str:
    return bytes(message.tolist()).rstrip(b"\0").decode("utf-8", "replace")


def _wait(work: distributed.Work | None, deadline: float) -> None:
    """Raises RuntimeError if the peer is gone or the time is over."""
    assert work is not None
    work.wait(timedelta(seconds=max(0.1, deadline - time.monotonic())))
