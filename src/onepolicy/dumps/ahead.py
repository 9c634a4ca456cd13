"""A few steps ahead: the next items are made while one is used."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
DEPTH = 1
"""items that are made before they are asked for; so many are in memory beside the one that is used"""


def ahead(items: Iterator[T]) -> Generator[T, None, None]:
    """The same items; the next ones are made in a thread while one is used. What making one raises, is raised here."""
    end = object()
    with ThreadPoolExecutor(1, thread_name_prefix="reading ahead") as pool:
        coming = deque(pool.submit(next, items, end) for _ in range(DEPTH))
        while (item := coming.popleft().result()) is not end:
            coming.append(pool.submit(next, items, end))
            yield item  # type: ignore[misc]  # what is not the end is an item
