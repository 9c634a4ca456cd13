"""One rank that onepolicy started: `python -m onepolicy.integrations.callable.worker TARGET RANK DESCRIPTOR`.

It calls the user's function for each batch that comes over the socket, and ends when the socket does:
whatever happens to the parent, no rank is left behind.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import sys
import threading
from queue import SimpleQueue

from onepolicy.errors import OnePolicyError
from onepolicy.integrations.callable.batch import Batch
from onepolicy.integrations.callable.channel import Channel, Frame
from onepolicy.integrations.callable.departure import leave_process_group
from onepolicy.integrations.callable.function import UserFunction, load_function


def main(target: str, rank: int, descriptor: int) -> None:
    """Load the function, then answer batches until told that it is done."""
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=False)  # the parent asks a hung rank where it is
    channel = Channel(socket.socket(fileno=descriptor))
    inbox = start_reading(channel)
    try:
        function = load_function(target)
    except OnePolicyError as error:
        channel.send(Frame(header={"error": str(error)}))
        inbox.get()  # nothing more is asked; wait to be ended
        return
    channel.send(Frame(header={"version": function.version, "takes_temperature": function.takes_temperature}))
    while "done" not in (frame := inbox.get()).header:
        channel.send(_answer(function, frame, rank))
    leave_process_group()


def _answer(function: UserFunction, frame: Frame, rank: int) -> Frame:
    """Rank 0 answers with logprobs, the others with the news that they are through."""
    batch = Batch(
        rollout_ids=frame.header["rollout_ids"],
        token_ids=list(frame.arrays),
        temperature=frame.header["temperature"],
    )
    try:
        if rank == 0:
            return Frame(header={}, arrays=function.score(batch))
        function.answer(batch)
        return Frame(header={})
    except OnePolicyError as error:
        return Frame(header={"error": str(error)})


def start_reading(channel: Channel) -> SimpleQueue[Frame]:
    """Read in a thread, so that the end of the parent is noticed while the function runs."""
    inbox: SimpleQueue[Frame] = SimpleQueue()
    threading.Thread(target=_read, args=(channel, inbox), daemon=True).start()
    return inbox


def _read(channel: Channel, inbox: SimpleQueue[Frame]) -> None:
    try:
        while True:
            inbox.put(channel.receive())
    except EOFError:
        _end_everything_here()


def _end_everything_here() -> None:
    """This process, and what the function started if the process leads a group of its own."""
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
