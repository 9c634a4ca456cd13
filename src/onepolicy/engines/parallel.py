"""The contract between `onepolicy parallel` and a model that is spread over ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy.typing as npt

from onepolicy.errors import EngineError, UsageError
from onepolicy.records.tokens import IntArray

RankLogits = tuple[npt.NDArray[Any], str]
"""[T, V] the bits of the logits, uint32 or uint16, and their dtype: float32, bfloat16 or float16"""


class LayoutUnavailableError(EngineError):
    """A layout that this model or this machine cannot have; nothing is broken, and nothing can be said of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a model is spread: a kind and over how many ranks."""

    kind: str
    """fsdp, tp; of a callable any name"""
    degree: int

    def __str__(self) -> str:
        return f"{self.kind}={self.degree}"


class RankModel(Protocol):
    """A model as one rank has it. All ranks are called in lock step, with the same ids."""

    notes: Sequence[str]
    """what a person should know of the layout, such as modules that stayed whole"""

    def logits(self, token_ids: IntArray, *, name: str) -> RankLogits | None:
        """Full logits of one sequence, alone and unpadded; None on a rank that has none. Raises: EngineError."""

    def encode(self, text: str, *, add_special_tokens: bool) -> IntArray:
        """Ids of a text. Raises: EngineError if there is no tokenizer."""


def parse_layouts(texts: Sequence[str]) -> tuple[Layout, ...]:
    """The layouts that `KIND=N,N` names, in order.

    Raises: UsageError if one is no kind and whole numbers from 1 on, or is there twice.
    """
    found = [layout for text in texts for layout in _layouts(text)]
    twice = [str(layout) for layout in found if found.count(layout) > 1]
    if twice:
        raise UsageError(f"the layout {twice[0]} is asked for more than once.")
    return tuple(found)


def _layouts(text: str) -> list[Layout]:
    kind, equals, degrees = text.partition("=")
    numbers = [part.strip() for part in degrees.split(",")]
    if not equals or not kind.isidentifier() or not all(n.isdecimal() and int(n) > 0 for n in numbers):
        raise UsageError(f"{text!r} is no layout: write a kind and how many ranks, as in fsdp=2 or tp=2,4.")
    return [Layout(kind=kind, degree=int(number)) for number in numbers]
