"""Scores of a reward model behind a URL: conversations or ids in, numbers out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from pydantic import Field

from onepolicy.engines.http import HttpClient, ServerOptions
from onepolicy.engines.readable import readable
from onepolicy.engines.requests import Json
from onepolicy.errors import EngineError
from onepolicy.records.tokens import Float64


class ScoringOptions(ServerOptions):
    """Options of every reward model behind a URL."""

    label: int | None = Field(default=None, ge=0)
    """which of several outputs is the reward"""
    max_length: int | None = Field(default=None, ge=1)
    """tokens of the longest text that it takes, where the server does not say it"""
    dtype: str = "unknown"
    """what it computes in: float32 makes the limits of its checks narrow"""


def scores_from(client: HttpClient, path: str, bodies: Sequence[Json], read: Callable[[Json], object]) -> Float64:
    """One request for each body, all in flight together. read: the numbers in an answer.

    Shape: -> [B, L]. Raises: EngineError, also where an answer has other numbers than the first, or none.
    """
    futures = [client.submit(client.request("POST", path, body)) for body in bodies]
    with readable(f"{client.url}{path}"):
        rows = [numbers_in(read(future.result())) for future in futures]
    if len({len(row) for row in rows}) != 1:
        raise EngineError(f"{client.url}{path}: answers have {sorted({len(row) for row in rows})} numbers each.")
    return np.stack(rows)


def numbers_in(value: object) -> Float64:
    """A number, or a list of them, as [L]; null is NaN. Raises: ValueError, TypeError for anything else."""
    listed: list[Any] = value if isinstance(value, list) else [value]
    if not listed or any(isinstance(one, bool | str | bytes) for one in listed):
        raise ValueError(f"{str(value)[:80]} is no score")
    return np.array([np.nan if one is None else float(one) for one in listed], dtype=np.float64)
