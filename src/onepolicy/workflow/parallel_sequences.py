"""The sequences whose logits are compared: of a suite, of a recorded run, or as they are given."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from onepolicy.errors import UsageError
from onepolicy.records.run import Run
from onepolicy.records.tokens import IntArray
from onepolicy.suites import load_suite
from onepolicy.suites.load import FixedSequence

SUITE = "fixed-quick"
Encode = Callable[[FixedSequence], IntArray]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Given:
    """One sequence."""

    name: str
    token_ids: IntArray
    """[T], at least 2"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceSource:
    """Where they are from, and how much of them is taken."""

    suite: str = SUITE
    """of fixed sequences, encoded by the model's tokenizer"""
    run: Path | None = None
    """a recorded run, whose rollouts are taken instead"""
    ids: Path | None = None
    """a file with a JSON list of ids in each line, which are taken instead"""
    count: int = 16
    """sequences at most"""
    longest: int = 256
    """tokens of each at most; full logits are large"""

    def sequences(self, encode: Encode) -> list[Given]:
        """The sequences. Raises: UsageError if there is none, or two sources are named."""
        if self.run is not None and self.ids is not None:
            raise UsageError("--run and --ids both name sequences. Give one of them.")
        cut = (Given(name=name, token_ids=ids[: self.longest]) for name, ids in self._all(encode))
        found = list(islice((one for one in cut if len(one.token_ids) > 1), self.count))
        if not found:
            raise UsageError("there is no sequence of two tokens or more, so nothing could be compared.")
        return found

    def _all(self, encode: Encode) -> Iterator[tuple[str, IntArray]]:
        if self.run is not None:
            return ((rollout.rollout_id, rollout.token_ids) for rollout in Run.open(self.run).rollouts())
        if self.ids is not None:
            return _of_file(self.ids)
        suite = load_suite(self.suite)
        if not suite.is_fixed:
            raise UsageError(f"the suite {suite.name!r} is of prompts. Take one of fixed sequences, such as {SUITE}.")
        return ((sequence.id, encode(sequence)) for sequence in suite.sequences)


def _of_file(path: Path) -> Iterator[tuple[str, IntArray]]:
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        if not line.strip():
            continue
        try:
            ids = json.loads(line)
        except json.JSONDecodeError as error:
            raise UsageError(f"{path}, line {number}: is not JSON ({error.msg}). Write a list of ids.") from error
        if not isinstance(ids, list) or not all(type(one) is int and 0 <= one < 2**31 for one in ids):
            raise UsageError(f"{path}, line {number}: is no list of ids, such as [1, 15, 3].")
        yield f"line {number}", np.array(ids, dtype=np.int32)
