"""Where a batch is cut into calls that share a KV cache, and where its sequences begin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from onepolicy.engines.contract import ScoreInput
from onepolicy.integrations.transformers.circumstances import BLOCK, Circumstances
from onepolicy.integrations.transformers.score import ScoreSettings
from onepolicy.records.tokens import Float64, IntArray

TURNS = 3
"""calls over the completion of a sequence that has one turn"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cuts:
    """B sequences in T columns."""

    starts: tuple[int, ...] | None = None
    """[B] the column of each sequence's first token; None: at the side that the engine pads"""
    columns: tuple[int, ...] = ()
    """where calls begin, and T: 0 < ... < T; none for one call"""

    def cached(self, row: int, length: int) -> Float64:
        """[length] how many tokens of a sequence the call that predicts each one found in the cache."""
        assert self.starts is not None, "only what shares a cache is counted"
        start = self.starts[row]
        predicted_at = np.maximum(np.arange(length) + start - 1, 0)
        begins = np.asarray(self.columns)[np.searchsorted(self.columns, predicted_at, side="right") - 1]
        found: Float64 = np.maximum(begins - start, 0).astype(np.float64)
        return found


def cuts_of(batch: Sequence[ScoreInput], how: Circumstances, settings: ScoreSettings) -> Cuts:
    """The cuts that the circumstances ask for.

    With a cache the prompts end in one column, so that each sequence's completion begins in a call of its own; padding
    is then on both sides.
    """
    kept = [item.token_ids[: settings.max_length] for item in batch]
    width = max(len(ids) for ids in kept)
    if how.chunk:
        return Cuts(columns=(*range(0, width, how.chunk), width))
    if how.cache is None:
        return Cuts()
    firsts = [_first(item, len(ids)) for item, ids in zip(batch, kept, strict=True)]
    prompt = max(firsts)
    starts = tuple(prompt - first for first in firsts)
    width = max(start + len(ids) for start, ids in zip(starts, kept, strict=True))
    inside = {at for at in _columns(batch, starts, how, prompt, width) if 0 < at < width}
    return Cuts(starts=starts, columns=(0, *sorted(inside), width))


def _first(item: ScoreInput, length: int) -> int:
    """The position of the first token that is asked for and has one before it; the end if there is none."""
    asked = np.flatnonzero(item.wanted[1:length])
    return int(asked[0]) + 1 if len(asked) else length


def _columns(
    batch: Sequence[ScoreInput], starts: tuple[int, ...], how: Circumstances, prompt: int, width: int
) -> set[int]:
    if how.cache == "prefix":
        return {prompt}
    if how.cache == "turns":
        return {
            start + int(at)
            for item, start in zip(batch, starts, strict=True)
            for at in _turns(item, _first(item, len(item.token_ids)))
        }
    return set(range(prompt, width, 1 if how.cache == "steps" else BLOCK))


def _turns(item: ScoreInput, first: int) -> IntArray:
    """Where the tokens that are asked for begin and end; of one run of them, also within it."""
    flips = np.flatnonzero(np.diff(item.wanted[1:].astype(np.int8))) + 2
    turns = np.union1d(flips, [first]).astype(np.int32)
    if len(turns) > 2 or first >= len(item.token_ids):
        return turns
    end = int(turns[1]) if len(turns) == 2 else len(item.token_ids)
    return np.union1d(turns, first + (end - first) * np.arange(1, TURNS) // TURNS).astype(np.int32)
