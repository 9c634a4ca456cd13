"""One step ahead: the next item is made while this one is used."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def ahead(items: Iterator[T]) -> Generator[T, None, None]:
    """The same items; each is made in a thread while the one before is used. What making one raises, is raised here."""
    end = object()
    with ThreadPoolExecutor(1, thread_name_prefix="reading ahead") as pool:
        coming = pool.submit(next, items, end)
        while (item := coming.result()) is not end:
            coming = pool.submit(next, items, end)
            yield item  # type: ignore[misc]  # what is not the end is an item
