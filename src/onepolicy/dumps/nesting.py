"""How deep an object of a file is, before anything walks it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from onepolicy.dumps.arrays import PendingArray
from onepolicy.dumps.stored import Opaque
from onepolicy.dumps.tensors import Storage
from onepolicy.errors import DumpError

MAX_DEPTH = 100
"""of lists in lists; a recording has about ten"""
FREE_VALUES = 10_000_000
"""values that shared parts may show whatever they hold"""
MAX_SHARED = 64
"""how often each value may be shown beyond that; the rollouts of a group share their prompt, about 16 times"""
_HOLDERS = frozenset({list, tuple, dict, set, frozenset, Opaque, np.ndarray, PendingArray, Storage})


def check_nesting(root: object) -> None:
    """Raises: DumpError if an object holds itself, is nested too deep, was begun and never filled, or refers so often
    to its own parts that nobody could write it out.

    No recursion; what is shared is looked at once.
    """
    measured: dict[int, _Extent] = {}
    open_now: set[int] = set()
    stack: list[tuple[Any, bool]] = [(root, False)]
    stored = 0
    while stack:
        found, seen = stack.pop()
        if type(found) not in _HOLDERS:
            continue
        if seen:
            open_now.discard(id(found))
            measured[id(found)] = _extent(found, measured)
        elif id(found) in open_now:
            raise DumpError("an object of the pickle holds itself")
        elif id(found) not in measured:
            _check_filled(found)
            open_now.add(id(found))
            stored += _length(found)
            stack.append((found, True))
            stack.extend((child, False) for child in _children(found))
    written = measured[id(root)].written if id(root) in measured else 0
    if written > FREE_VALUES + MAX_SHARED * stored:
        raise DumpError(f"the pickle has {stored} values and refers to them so often that it shows {written}")


@dataclass(frozen=True, slots=True)
class _Extent:
    depth: int
    written: int
    """values, if what is shared were written out each time"""


def _extent(found: Any, measured: dict[int, _Extent]) -> _Extent:
    inside = [measured[id(child)] for child in _children(found)]
    depth = 1 + max((extent.depth for extent in inside), default=0)
    if depth > MAX_DEPTH:
        raise DumpError(f"the pickle is nested deeper than {MAX_DEPTH} levels")
    return _Extent(depth, _length(found) + sum(extent.written for extent in inside))


def _length(found: Any) -> int:
    return 1 if type(found) is Opaque or type(found) is np.ndarray else len(found)


def _check_filled(found: object) -> None:
    if isinstance(found, PendingArray):
        raise DumpError("an array of the pickle was begun and has no contents")
    if isinstance(found, Storage):
        raise DumpError("a torch storage that belongs to no tensor; save the tensor")


def _children(found: Any) -> list[Any]:
    inside: Iterable[Any] = ()
    if type(found) is dict:
        inside = [*found.keys(), *found.values()]
    elif type(found) is Opaque:
        inside = found.parts()
    elif type(found) is np.ndarray:
        inside = found.flat if found.dtype.hasobject else ()
    elif type(found) in {list, tuple, set, frozenset}:
        inside = found
    return [child for child in inside if type(child) in _HOLDERS]
