"""Ranks that onepolicy starts itself: N processes that call the user's function in lock step.

Each rank gets the same batch from the parent and the variables that torchrun would set, so a module that
calls `torch.distributed.init_process_group()` works unchanged. Rank 0's answer counts; a batch is done
when all ranks are.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import time
from dataclasses import dataclass, field
from typing import Never

from onepolicy.errors import EngineError
from onepolicy.integrations.callable.batch import Batch
from onepolicy.integrations.callable.channel import Frame
from onepolicy.integrations.callable.process import RankProcess, free_port, start_rank
from onepolicy.records.tokens import Float64

_SETTLING = 0.5
"""seconds to wait after a failure: peers of a dead rank fail too, and the dead one is the one to name"""
_GOODBYE = 5.0
"""seconds to end in after the last batch"""


@dataclass(slots=True)
class _Round:
    """How far one exchange with the ranks has come, by rank."""

    waiting: dict[int, RankProcess]
    frames: dict[int, Frame] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)
    gone: dict[int, RankProcess] = field(default_factory=dict)

    @property
    def has_failed(self) -> bool:
        return bool(self.errors or self.gone)


def is_under_torchrun() -> bool:
    """Whether this process is itself one of several ranks; see `onepolicy.integrations.callable.torchrun`."""
    return "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


class StartedRanks:
    """N processes that hold the user's function. After any failure all of them are ended."""

    def __init__(self, target: str, *, count: int, timeout: float) -> None:
        self._target = target
        self._timeout = timeout
        self._ranks: list[RankProcess] = []
        try:
            port = free_port()
            for rank in range(count):
                self._ranks.append(start_rank(target, rank=rank, count=count, port=port))
                self._ranks[-1].channel.socket.settimeout(timeout)
            ready = self._exchange("loading")
        except BaseException:  # Ctrl-C too: nothing may be left running
            self._end(grace=0.0)
            raise
        self.version = str(ready.header["version"])
        self.takes_temperature = bool(ready.header["takes_temperature"])

    @property
    def process_ids(self) -> list[int]:
        """Of the ranks, in their order; empty once they are ended."""
        return [rank.process.pid for rank in self._ranks]

    def score(self, batch: Batch) -> list[Float64]:
        """Rank 0's logprobs, once all ranks are through.

        Raises: EngineError naming the rank that raised, died or took longer than the timeout.
        """
        if not self._ranks:
            raise EngineError(f"callable:{self._target}: its ranks have ended. Open the engine again.")
        try:
            return list(self._exchange(f"scoring {batch.label}", batch).arrays)
        except BaseException:  # Ctrl-C too: a rank in the middle of a batch cannot take the next
            self._end(grace=0.0)
            raise

    def close(self) -> None:
        """End the ranks and wait for them."""
        self._send(Frame(header={"done": True}))
        self._end(grace=_GOODBYE)

    def _exchange(self, doing: str, batch: Batch | None = None) -> Frame:
        """Send a batch to all ranks, if there is one; rank 0's answer once all have answered."""
        if batch is not None:
            self._send(_frame(batch))
        state = _wait_for_all(self._ranks, timeout=self._timeout)
        if state.has_failed or state.waiting:
            self._explain(state, doing)
        return state.frames[0]

    def _send(self, frame: Frame) -> None:
        for rank in self._ranks:
            with contextlib.suppress(OSError):  # it is gone, which waiting for it will tell
                rank.channel.send(frame)

    def _explain(self, state: _Round, doing: str) -> Never:
        """Raise for the rank that is to blame: one that died, else one that raised, else those that hang."""
        title = f"callable:{self._target}: "
        if state.gone:
            rank = next(iter(state.gone.values()))
            rank.end(grace=2.0)  # its socket closes a moment before the process ends
            raise EngineError(f"{title}{self._named(rank)} {rank.death} while {doing}. {rank.last_lines}\n{_ENDED}")
        if state.errors:
            number, error = next(iter(state.errors.items()))
            raise EngineError(f"{title}{self._named(self._ranks[number])}: {error}\n{_ENDED}")
        raise EngineError(f"{title}{self._hanging(list(state.waiting.values()), doing)}\n{_ENDED}")

    def _hanging(self, ranks: list[RankProcess], doing: str) -> str:
        for rank in ranks:
            rank.ask_where_it_is()
        time.sleep(0.2)
        stacks = "\n".join(f"{self._named(rank)}: {rank.last_lines}" for rank in ranks)
        numbers = ", ".join(str(rank.rank) for rank in ranks)
        return (
            f"no answer from rank {numbers} of {len(self._ranks)} within {self._timeout:g} s of {doing}. "
            f"Either it waits for a collective that not all ranks take part in, or it needs longer: pass "
            f"`?timeout=` in seconds.\n{stacks}"
        )

    def _named(self, rank: RankProcess) -> str:
        return f"rank {rank.rank} of {len(self._ranks)}"

    def _end(self, *, grace: float) -> None:
        for rank in self._ranks:
            rank.end(grace=grace)
        for rank in self._ranks:
            rank.close()
        self._ranks = []


_ENDED = "All ranks have been ended."


def _frame(batch: Batch) -> Frame:
    header = {"rollout_ids": batch.rollout_ids, "temperature": batch.temperature}
    return Frame(header=header, arrays=batch.token_ids)


def _wait_for_all(ranks: list[RankProcess], *, timeout: float) -> _Round:
    """Until all have answered, the time is over, or a failure has settled."""
    state = _Round(waiting={rank.rank: rank for rank in ranks})
    deadline = time.monotonic() + timeout
    with selectors.DefaultSelector() as selector:
        for rank in ranks:
            selector.register(rank.channel.socket, selectors.EVENT_READ, rank)
        while state.waiting and (left := deadline - time.monotonic()) > 0.0:
            had_failed = state.has_failed
            for key, _ in selector.select(left):
                selector.unregister(key.fileobj)
                _take(state, key.data)
            if state.has_failed and not had_failed:
                deadline = min(deadline, time.monotonic() + _SETTLING)
    return state


def _take(state: _Round, rank: RankProcess) -> None:
    try:
        frame = rank.channel.receive()
    except TimeoutError:  # it stopped in the middle of its answer
        return
    except EOFError:
        state.gone[rank.rank] = state.waiting.pop(rank.rank)
        return
    del state.waiting[rank.rank]
    state.frames[rank.rank] = frame
    if "error" in frame.header:
        state.errors[rank.rank] = frame.header["error"]
