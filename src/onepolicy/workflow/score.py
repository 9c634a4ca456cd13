"""A run and an engine -> one more reading."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from onepolicy.engines.contract import Engine, ScoreInput, Wanted
from onepolicy.engines.spec import EngineSpec
from onepolicy.errors import EngineError, RunError
from onepolicy.integrations import open_engine
from onepolicy.records.join import TopJoin
from onepolicy.records.protocol import Meaning
from onepolicy.records.reading import ReadingInfo, ReadingRequest, ReadingRow
from onepolicy.records.rollout import Rollout
from onepolicy.records.run import Run
from onepolicy.workflow.environment import engine_info, environment
from onepolicy.workflow.plan import Shard
from onepolicy.workflow.progress import Progress, Silent
from onepolicy.workflow.record import ROLLOUT

TRAINER = "trainer"
"""name of the trainer side's reading"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRequest:
    """What to compute on a run's rollouts."""

    engine: EngineSpec
    name: str = TRAINER
    meaning: Meaning | None = None
    """None: what the rollout reading means, or raw if the run has none"""
    statistics: bool = False
    report_ids_of: str | None = ROLLOUT
    """report the logprobs of the top tokens of this reading, where the run has them"""
    shard: Shard = Shard()
    resume: bool = False
    """go on with a reading that was begun; without it one of this name is an error"""


def score(path: Path, request: ScoreRequest, *, progress: Progress | None = None) -> Run | None:
    """Score a run's rollouts; what the reading already has is not computed again.

    Returns None in a process that only follows another one (a rank above 0 under torchrun).
    Raises: EngineError, RunError.
    """
    run = Run.open(path)
    _check_recorded(run)
    engine = open_engine(request.engine)
    try:
        if getattr(engine, "is_follower", False):
            engine.follow()  # type: ignore[attr-defined]
            return None
        score_with(engine, run, request, progress=progress or Silent())
        return run
    finally:
        engine.close()


def score_with(engine: Engine, run: Run, request: ScoreRequest, *, progress: Progress) -> None:
    """The same with an engine and a run that are at hand."""
    if not engine.scores:
        raise EngineError(
            f"{request.engine}: {request.engine.engine} can only be a rollout side for now; it cannot score."
        )
    reading = _reading_request(run, request)
    with run.writing(request.name, shard=str(request.shard)):
        _start(engine, run, request, reading)
        done = run.reading_digests(request.name)
        if done and not request.resume and not request.shard.count > 1:
            raise RunError(
                f"{run.path}: the reading {request.name!r} is there already. Go on with it with --resume, which "
                "computes what it lacks, or give another --name."
            )
        progress.start(f"scoring ({request.name})", run.manifest.planned_rollouts // request.shard.count)
        top = TopJoin(run, reading.report_ids_of) if reading.report_ids_of else None
        for batch in _batches(run, engine.batch_size, request.shard):
            if any(done.get(rollout.rollout_id) != rollout.digest for rollout in batch):
                _score_batch(engine, run, batch, reading, request, top)
            progress.advance(len(batch))


def _check_recorded(run: Run) -> None:
    have, planned = len(run.rollout_ids()), run.manifest.planned_rollouts
    if have != planned:
        raise RunError(
            f"{run.path}: {have} of {planned} rollouts are recorded. Finish with: onepolicy record ... --run "
            f"{run.path} --resume (in every shard), then score."
        )


def _reading_request(run: Run, request: ScoreRequest) -> ReadingRequest:
    has_rollout_reading = ROLLOUT in run.reading_names()
    meaning = request.meaning
    if meaning is None:
        meaning = run.reading_info(ROLLOUT).meaning if has_rollout_reading else Meaning()
    source = request.report_ids_of
    if source is not None and (source not in run.reading_names() or not run.top_parts(source)):
        source = None
    return ReadingRequest(
        engine=str(request.engine),
        path="prefill",
        meaning=meaning,
        statistics=request.statistics,
        report_ids_of=source,
    )


def _start(engine: Engine, run: Run, request: ScoreRequest, reading: ReadingRequest) -> None:
    run.start_reading(
        ReadingInfo(
            name=request.name,
            request=reading,
            engine=engine_info(run, engine),
            condition=engine.condition(path="prefill"),
            meaning=reading.meaning,
            environment=environment(),
        )
    )


def _batches(run: Run, size: int, shard: Shard) -> Iterator[list[Rollout]]:
    """Batches that depend on the run and the size alone, so that a repeated batch is padded as it was."""
    batch: list[Rollout] = []
    number = 0
    for rollout in run.rollouts():
        batch.append(rollout)
        if len(batch) == size:
            if number % shard.count == shard.index:
                yield batch
            batch, number = [], number + 1
    if batch and number % shard.count == shard.index:
        yield batch


def _score_batch(
    engine: Engine,
    run: Run,
    batch: list[Rollout],
    reading: ReadingRequest,
    request: ScoreRequest,
    top: TopJoin | None,
) -> None:
    inputs = [
        ScoreInput(
            rollout_id=rollout.rollout_id,
            token_ids=rollout.token_ids,
            wanted=rollout.compared,
            report=None if top is None else top.get(rollout.rollout_id),
            keep_top=False,
        )
        for rollout in batch
    ]
    rows = engine.score(inputs, Wanted(meaning=reading.meaning, statistics=reading.statistics))
    _check_answers(request.engine, batch, rows)
    run.write_reading(request.name, rows)


def _check_answers(spec: EngineSpec, batch: list[Rollout], rows: list[ReadingRow]) -> None:
    """What comes back must be what was sent, else it is an error and not a number."""
    if len(rows) != len(batch):
        raise EngineError(f"{spec}: was given {len(batch)} rollouts and answered {len(rows)}.")
    for rollout, row in zip(batch, rows, strict=True):
        if (row.rollout_id, row.digest) != (rollout.rollout_id, rollout.digest):
            raise EngineError(
                f"{spec}: was given the ids of rollout {rollout.rollout_id} (digest {rollout.digest}) and answered for "
                f"{row.rollout_id} (digest {row.digest})."
            )
        if len(row.logprobs) != len(rollout.token_ids):
            raise EngineError(
                f"{spec}: rollout {rollout.rollout_id} has {len(rollout.token_ids)} tokens, and {len(row.logprobs)} "
                "entries came back."
            )
