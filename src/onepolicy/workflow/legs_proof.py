"""Whether a reading took from a cache, by the counts that it keeps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from onepolicy.engines.legs import CACHED
from onepolicy.records.parquet import READING_SCHEMA, STATISTIC_PREFIX
from onepolicy.records.run import Run
from onepolicy.records.stored import open_parquet, read_row_group
from onepolicy.records.tokens import Float64, TokenState
from onepolicy.records.verdict import Status, Verdict

CHECK = "cache_proof"
LEAST = 0.5
"""share of the tokens before which something must come from the cache, so that the numbers are of a cache at all"""
_COLUMN = STATISTIC_PREFIX + CACHED


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """Of one leg."""

    verdict: Verdict
    from_cache: float | None
    """share of the tokens before which something came from the cache; None where no count says so"""


def cache_proof(run: Run, *, warm: str, cold: str, cold_because: str = "") -> Proof:
    """Pass if most tokens of the warm reading are known to come after something from a cache, and none of the cold one.

    cold_because: why the cold reading has no counts and needs none. Anything else is unknown, never a pass.
    """
    counts = _counts(run, warm)
    share = None if counts is None else float(np.mean(counts > 0))
    why = _not_warm(counts, share) or _not_cold(run, cold, cold_because)
    taken = 0.0 if share is None else share
    message = why or f"{taken:.0%} of the tokens come after something from the cache in {warm!r}, none in {cold!r}."
    verdict = Verdict(
        check=CHECK,
        status=Status.UNKNOWN if why else Status.PASS,
        quantity="from_cache",
        value=share,
        limit=LEAST,
        unit="share of tokens",
        message=message,
    )
    return Proof(verdict=verdict, from_cache=share)


def _not_warm(counts: Float64 | None, share: float | None) -> str:
    if counts is None or share is None:
        return (
            "no count of cached tokens came with the warm reading, so nothing proves that a cache was used. Start the "
            "server so that it counts them (vLLM: --enable-prompt-tokens-details)."
        )
    if share < LEAST:
        return (
            f"{share:.0%} of the tokens come after something from the cache, {LEAST:.0%} are needed. Is the prefix "
            "cache on, and are prompts longer than one of its blocks?"
        )
    return ""


def _not_cold(run: Run, cold: str, cold_because: str) -> str:
    if cold_because:
        return ""
    counts = _counts(run, cold)
    if counts is None:
        return f"no count of cached tokens came with {cold!r}, so nothing proves that it was cold."
    if counts.any():
        return (
            f"up to {counts.max():.0f} tokens of {cold!r} came from the cache, so it was not cold: the server does not "
            "keep requests with another salt apart. Use a version that does, or start it without the cache."
        )
    return ""


def _counts(run: Run, name: str) -> Float64 | None:
    """[N] of every token with a logprob; None if the reading has none, or not for each."""
    parts = list(_parts(run, name))
    if not parts or any(part is None for part in parts):
        return None
    counts = np.concatenate([part for part in parts if part is not None])
    return counts if len(counts) and not np.isnan(counts).any() else None


def _parts(run: Run, name: str) -> Iterator[Float64 | None]:
    for path in run.reading_parts(name):
        with open_parquet(path, READING_SCHEMA) as file:
            if _COLUMN not in file.schema_arrow.names:
                yield None
                continue
            for group in range(file.num_row_groups):
                table = read_row_group(path, file, group, ["states", _COLUMN])
                states, counts = (table[column].combine_chunks().flatten() for column in ("states", _COLUMN))
                valued = states.to_numpy(zero_copy_only=False) == TokenState.VALUE
                yield counts.to_numpy(zero_copy_only=False).astype(np.float64)[valued]
