"""Processes that onepolicy starts as ranks and asks in lock step, whatever they compute.

Each gets the variables that torchrun would set, so a module that calls `torch.distributed.init_process_group()` works
unchanged. A rank that dies, raises or hangs ends all of them, and is named.
"""

from __future__ import annotations

import contextlib
import selectors
import time
from dataclasses import dataclass, field
from typing import Never

from onepolicy.errors import EngineError
from onepolicy.integrations.callable.channel import Frame
from onepolicy.integrations.callable.process import RankProcess, RankStart, free_port, start_rank

_SETTLING = 0.5
"""seconds to wait after a failure: peers of a dead rank fail too, and the dead one is the one to name"""
_GOODBYE = 5.0
"""seconds to end in after the last question"""
_ENDED = "All ranks have been ended."


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


class RankGroup:
    """N processes of one kind. After any failure all of them are ended."""

    def __init__(self, start: RankStart, *, count: int, timeout: float, name: str) -> None:
        """name: what is asked, for messages. Raises: EngineError if a rank cannot start."""
        self._name = name
        self._timeout = timeout
        self._ranks: list[RankProcess] = []
        try:
            port = free_port()
            for rank in range(count):
                self._ranks.append(start_rank(start, rank=rank, count=count, port=port))
                self._ranks[-1].channel.socket.settimeout(timeout)
        except BaseException:  # Ctrl-C too: nothing may be left running
            self.end(grace=0.0)
            raise

    @property
    def process_ids(self) -> list[int]:
        """Of the ranks, in their order; empty once they are ended."""
        return [rank.process.pid for rank in self._ranks]

    def ask(self, frame: Frame | None, doing: str) -> list[Frame]:
        """Send a message to all ranks, if there is one; their answers in order, once all have answered.

        doing: for messages. Raises: EngineError naming the rank that raised, died or took longer than the timeout.
        """
        if not self._ranks:
            raise EngineError(f"{self._name}: its ranks have ended. Open the engine again.")
        try:
            if frame is not None:
                self._send(frame)
            state = _wait_for_all(self._ranks, timeout=self._timeout)
            if state.has_failed or state.waiting:
                self._explain(state, doing)
        except BaseException:  # Ctrl-C too: a rank in the middle of an answer cannot take the next question
            self.end(grace=0.0)
            raise
        return [state.frames[rank.rank] for rank in self._ranks]

    def close(self) -> None:
        """Tell the ranks that all is done, end them and wait for them."""
        self._send(Frame(header={"done": True}))
        self.end(grace=_GOODBYE)

    def end(self, *, grace: float) -> None:
        """End the ranks, which may end by themselves for `grace` seconds, and wait for them."""
        for rank in self._ranks:
            rank.end(grace=grace)
        for rank in self._ranks:
            rank.close()
        self._ranks = []

    def _send(self, frame: Frame) -> None:
        for rank in self._ranks:
            with contextlib.suppress(OSError):  # it is gone, which waiting for it will tell
                rank.channel.send(frame)

    def _explain(self, state: _Round, doing: str) -> Never:
        """Raise for the rank that is to blame: one that died, else one that raised, else those that hang."""
        title = f"{self._name}: "
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
            f"Either it waits for a collective that not all ranks take part in, or it needs longer: give it more "
            f"seconds with timeout=.\n{stacks}"
        )

    def _named(self, rank: RankProcess) -> str:
        return f"rank {rank.rank} of {len(self._ranks)}"


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
