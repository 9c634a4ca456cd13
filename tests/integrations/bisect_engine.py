"""A stand-in vLLM in a process of its own, whose switches a bisection chooses.

    python bisect_engine.py --port 8123 [--dtype=bfloat16] [--cache=fp8] [--block-size=16] [--seed=1] [--needs-block]

Only `--dtype=bfloat16` and `--cache=fp8` together change what it answers. With `--needs-block` and without
`--block-size=16` it does not start; with `--silent` it never answers.
"""

from __future__ import annotations

import argparse
import signal
import socket
import sys
import threading

from standin import TinyModel, Vllm
from standin.server import StandIn


class AtPort(StandIn):
    """A stand-in behind a port that somebody else chose."""

    def __init__(self, dialect: Vllm, port: int) -> None:
        self.wanted = port
        super().__init__(dialect)

    def revive(self) -> None:
        self._port = self.wanted
        super().revive()


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("--port", type=int, required=True)
    asked.add_argument("--dtype", default="float32")
    asked.add_argument("--cache", default="auto")
    asked.add_argument("--block-size", default="32")
    asked.add_argument("--seed", default="0")
    asked.add_argument("--needs-block", action="store_true")
    asked.add_argument("--silent", action="store_true")
    given = asked.parse_args()
    if given.needs_block and given.block_size != "16":
        sys.exit("ValueError: this needs a block size of 16")
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    if given.silent:
        with socket.create_server(("127.0.0.1", given.port)):
            ended.wait()
        return
    planted = given.dtype == "bfloat16" and given.cache == "fp8"
    server = AtPort(Vllm(tiny=TinyModel(noise=0.5 if planted else 0.0, salt=given.dtype)), given.port)
    ended.wait()
    server.die()


if __name__ == "__main__":
    main()
