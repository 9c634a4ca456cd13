"""Scripted servers that end with the test."""

import socket
from collections.abc import Callable, Iterator

import pytest
from scripted import Respond, Scripted


@pytest.fixture
def scripted() -> Iterator[Callable[[Respond], Scripted]]:
    """Start a server that answers as a function says; None breaks the connection."""
    started: list[Scripted] = []

    def start(respond: Respond) -> Scripted:
        started.append(Scripted(respond))
        return started[-1]

    yield start
    for one in started:
        one.end()


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port
