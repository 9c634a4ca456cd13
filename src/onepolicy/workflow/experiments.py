"""Experiments of causes, executed: a few rollouts are read again with one thing changed."""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from onepolicy.diagnosis.cause import Edit, Experiment
from onepolicy.diagnosis.likelihood import Family
from onepolicy.diagnosis.tokens import Tokens
from onepolicy.engines.contract import Engine, ScoreInput, Wanted
from onepolicy.engines.spec import EngineSpec
from onepolicy.errors import EngineError, InapplicableError, OnePolicyError
from onepolicy.integrations import open_engine
from onepolicy.records.protocol import Meaning
from onepolicy.records.reading import ReadingRow
from onepolicy.records.tokens import BoolArray, Float64
from onepolicy.workflow.diagnose_tokens import with_columns
from onepolicy.workflow.progress import Progress

PROMPTS = 16
"""on which experiments are run, one rollout of each"""
MOST_LENGTH = 1024
"""ids of a rollout that is read again; a longer one is only taken where there is no other"""


def few_prompts(tokens: Tokens) -> Tokens:
    """One rollout of each of `PROMPTS` prompts, drawn by the hash of their ids."""
    rows = [row for row, _ in tokens.parts()]
    rows.sort(key=lambda row: (len(tokens.sequences[row]) > MOST_LENGTH, zlib.crc32(tokens.rollout_ids[row].encode())))
    first: dict[str, int] = {}
    for row in rows:
        if len(first) < PROMPTS:
            first.setdefault(tokens.prompt_ids[row], row)
    return tokens.chosen(np.isin(tokens.rollout, list(first.values())))


@dataclass(slots=True, kw_only=True)
class Laboratory:
    """Runs experiments on some tokens; an engine stays open while the next one needs it too."""

    tokens: Tokens
    meanings: dict[str, Meaning]
    """side -> of its own reading"""
    progress: Progress
    until: float = math.inf
    """on the monotonic clock: later no experiment is begun"""
    failed: dict[str, str] = field(default_factory=dict)
    """label of an experiment -> why it could not be run"""
    _open: dict[str, Engine] = field(default_factory=dict)
    _closed: dict[str, OnePolicyError] = field(default_factory=dict)
    """spec -> why it does not open"""

    def families(self, experiments: Sequence[Experiment]) -> list[Family]:
        """Experiments that differ in their value alone are one family. What fails is kept in `failed`."""
        of_cause: dict[tuple[str, str], dict[float, tuple[Experiment, Float64]]] = {}
        for experiment in experiments:
            column = self.column(experiment)
            if column is not None:
                key = (experiment.cause, experiment.label if experiment.value == 0.0 else experiment.side)
                of_cause.setdefault(key, {})[experiment.value] = (experiment, column)
        return [_family(self.tokens, readings) for readings in of_cause.values()]

    def column(self, experiment: Experiment) -> Float64 | None:
        """[M] the logprobs that it gives; None if it could not be run."""
        if time.monotonic() > self.until:
            self.failed[experiment.label] = "not begun, as the time was over (--seconds gives more)"
            return None
        try:
            rows = self._rows(experiment)
        except InapplicableError:
            return None  # the model has nothing of the kind: there is nothing to try
        except OnePolicyError as error:
            self.failed[experiment.label] = str(error)
            return None
        return np.concatenate(
            [
                _values(rows[self.tokens.rollout_ids[row]], self.tokens.position[part], experiment.edit)
                for row, part in self.tokens.parts()
            ]
        )

    def with_statistics(self, spec: EngineSpec) -> Tokens:
        """The tokens with statistics of the trainer's distributions; as they were if its engine cannot give any."""
        plain = Experiment(cause="", label="statistics of the trainer", engine=spec, meaning=Meaning())
        try:
            rows = self._rows(plain, statistics=True)
        except OnePolicyError as error:
            self.failed[plain.label] = str(error)
            return self.tokens
        found, _ = with_columns(self.tokens, {name: row.statistics for name, row in rows.items()})
        return replace(self.tokens, trainer_statistics=found) if found else self.tokens

    def close(self) -> None:
        """Free the engines."""
        for engine in self._open.values():
            engine.close()
        self._open.clear()

    def _rows(self, experiment: Experiment, *, statistics: bool = False) -> dict[str, ReadingRow]:
        engine = self._engine(experiment.engine)
        meaning = self.meanings[experiment.side] if experiment.meaning is None else experiment.meaning
        if meaning.beyond:
            raise EngineError(f"its logprobs are {meaning}, under which no engine scores")
        wanted = Wanted(meaning=meaning, statistics=statistics)
        inputs = [self._input(row, self.tokens.position[part], experiment.edit) for row, part in self.tokens.parts()]
        self.progress.start(f"trying: {experiment.label}", len(inputs))
        found: dict[str, ReadingRow] = {}
        for first in range(0, len(inputs), engine.batch_size):
            batch = inputs[first : first + engine.batch_size]
            for row in engine.score(batch, wanted):
                found[row.rollout_id] = row
            self.progress.advance(len(batch))
        return found

    def _engine(self, spec: EngineSpec) -> Engine:
        key = str(spec)
        if key in self._closed:
            raise self._closed[key]  # what does not open now does not open a moment later
        if key not in self._open:
            self.close()  # one model in memory at a time
            try:
                self._open[key] = open_engine(spec)
            except OnePolicyError as error:
                self._closed[key] = error
                raise
        return self._open[key]

    def _input(self, row: int, positions: np.ndarray, edit: Edit) -> ScoreInput:
        ids = self.tokens.sequences[row]
        wanted: BoolArray = np.zeros(len(ids), dtype=np.bool_)
        wanted[positions] = True
        prefix = np.array(edit.prepend, dtype=np.int32)
        return ScoreInput(
            rollout_id=self.tokens.rollout_ids[row],
            token_ids=np.concatenate([prefix, ids[edit.drop :]]),
            wanted=np.concatenate([np.zeros(len(prefix), dtype=np.bool_), wanted[edit.drop :]]),
            keep_top=False,
        )


def grouped(experiments: Iterable[Experiment]) -> list[Experiment]:
    """In an order in which each engine is opened once."""
    return sorted(experiments, key=lambda one: str(one.engine))


def _values(row: ReadingRow, positions: np.ndarray, edit: Edit) -> Float64:
    moved = positions + len(edit.prepend) - edit.drop
    inside = moved >= 0
    found = np.full(len(positions), np.nan)
    found[inside] = row.logprobs[moved[inside]]
    return found


def _family(tokens: Tokens, readings: dict[float, tuple[Experiment, Float64]]) -> Family:
    first = next(iter(readings.values()))[0]

    def corrected(value: float) -> Float64:
        experiment, column = readings[value]
        return column - tokens.p if experiment.side == "trainer" else tokens.q - column

    return Family(
        cause=first.cause,
        values=tuple(readings),
        corrected=corrected,
        label=lambda value: readings[value][0].label,
        settles=first.settles,
        experiment=f"{len(tokens.parts())} rollouts read again: {first.label}"
        if len(readings) == 1
        else f"{len(tokens.parts())} rollouts read again with each of {len(readings)} values",
    )
