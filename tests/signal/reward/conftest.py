"""Scorers without a model: a function of the text, with one fault or none."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import numpy as np
import pytest

from onepolicy.records.verdict import Verdict
from onepolicy.signal.reward.check import checked
from onepolicy.signal.reward.pairs import load_pairs
from onepolicy.signal.reward.scorer import ScorerInfo
from onepolicy.signal.reward.subject import Subject, subject_of


def sound(conversation) -> float:
    """A number of the prompt and the last answer, between -2 and 2."""
    text = "\n".join(message["content"] for message in conversation)
    return zlib.crc32(text.encode()) / 2**30 - 2.0


class Function:
    """Scores each conversation with a function; outputs of several labels stand side by side."""

    def __init__(self, score: Callable = sound, *, dtype: str = "float32", **info) -> None:
        self._score = score
        self.info = ScorerInfo(name="function", dtype=dtype, **info)

    def score(self, conversations):
        rows = [np.atleast_1d(np.asarray(self._score(one), dtype=np.float64)) for one in conversations]
        return np.stack(rows)

    def close(self) -> None:
        """Nothing is held."""


@pytest.fixture(scope="session")
def function() -> type[Function]:
    return Function


@pytest.fixture(scope="session")
def plain() -> Callable:
    return sound


@pytest.fixture(scope="session")
def subject() -> Callable[..., Subject]:
    def make(scorer, served=None) -> Subject:
        return subject_of(scorer, load_pairs(None), served=served)

    return make


@pytest.fixture(scope="session")
def verdicts(subject) -> Callable[..., dict[str, Verdict]]:
    """Check -> its verdict, of all checks on a scorer."""

    def make(scorer, served=None) -> dict[str, Verdict]:
        return {verdict.check: verdict for verdict in checked(subject(scorer, served))}

    return make
