"""A run and an engine -> one more reading."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from onepolicy.engines.contract import Concurrent, Engine, ScoreInput, Wanted
from onepolicy.engines.spec import EngineSpec
from onepolicy.errors import EngineError, RunError
from onepolicy.integrations import open_engine
from onepolicy.records.join import TopJoin
from onepolicy.records.protocol import Meaning
from onepolicy.records.reading import ReadingInfo, ReadingRequest, ReadingRow
from onepolicy.records.rollout import Rollout
from onepolicy.records.run import Run
from onepolicy.records.tokens import digest_of_ids
from onepolicy.workflow.answers import chunks, scored
from onepolicy.workflow.environment import engine_info, environment
from onepolicy.workflow.plan import Shard
from onepolicy.workflow.progress import Progress, Silent
from onepolicy.workflow.record import ROLLOUT
from onepolicy.workflow.same_model import SameModel, canary_ids, canary_of
from onepolicy.workflow.whole import is_snapshot, to_finish

TRAINER = "trainer"
"""name of the trainer side's reading"""
WINDOW = 32
"""batches within which rollouts are handed over by length, to an engine that is given batches"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRequest:
    """What to compute on a run's rollouts."""

    engine: EngineSpec
    name: str = TRAINER
    meaning: Meaning | None = None
    """None: what the rollout reading means, or raw if the run has none"""
    statistics: bool = False
    top: int = 0
    """most likely tokens to keep at each position, where no ids are to be reported; 0 is none"""
    report_ids_of: str | None = ROLLOUT
    """report the logprobs of the top tokens of this reading, where the run has them"""
    shuffle: int | None = None
    """hand the rollouts over in another order, drawn from this seed; all of them are held in memory then"""
    shard: Shard = Shard()
    resume: bool = False
    """go on with a reading that was begun; without it one of this name is an error"""


def score(path: Path, request: ScoreRequest, *, progress: Progress | None = None) -> Run | None:
    """Score a run's rollouts; what the reading already has is not computed again.

    Returns None in a process that only follows another one (a rank above 0 under torchrun).
    Raises: EngineError, RunError.
    """
    run = Run.open(path)
    check_recorded(run)
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
    reading = reading_request(run, request)
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
        window = 1 if isinstance(engine, Concurrent) else WINDOW * engine.batch_size
        left = _left(_in_order(run, reading, window), engine.batch_size, request.shard, done, progress)
        inputs = (_input(rollout, top, keeps_top=reading.top > 0) for rollout in left)
        wanted = Wanted(meaning=reading.meaning, statistics=reading.statistics, top=reading.top)
        same = SameModel(engine, run.reading_info(request.name).canary, of_versions=False)
        for asked, rows in scored(engine, inputs, wanted, same):
            _check_answers(request.engine, asked, rows)
            run.write_reading(request.name, rows)
            progress.advance(len(rows))


def check_recorded(run: Run) -> None:
    """Raise RunError if a rollout that was planned is not there."""
    have, planned = len(run.rollout_ids()), run.manifest.planned_rollouts
    if have != planned:
        then = "" if is_snapshot(run) else " (in every shard), then score"
        raise RunError(f"{run.path}: {have} of {planned} rollouts are recorded. Finish with: {to_finish(run)}{then}.")


def reading_request(run: Run, request: ScoreRequest) -> ReadingRequest:
    """What a run keeps of a request; two readings with equal ones need computing once. Raises: EngineError."""
    has_rollout_reading = ROLLOUT in run.reading_names()
    meaning = request.meaning
    if meaning is None:
        meaning = run.reading_info(ROLLOUT).meaning if has_rollout_reading else Meaning()
    if meaning.beyond:
        raise EngineError(
            f"{run.path}: the rollout logprobs are {meaning}, and no engine here scores under {meaning.beyond[0]}. "
            "Sample without it, or have the rollout side return raw logprobs."
        )
    source = request.report_ids_of
    if source is not None and (source not in run.reading_names() or not run.top_parts(source)):
        source = None
    return ReadingRequest(
        engine=str(request.engine),
        path="prefill",
        meaning=meaning,
        statistics=request.statistics,
        top=request.top,
        report_ids_of=source,
        shuffle=request.shuffle,
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
            canary=canary_of(engine, canary_ids(run)),
        )
    )


def _in_order(run: Run, reading: ReadingRequest, window: int) -> Iterator[Rollout]:
    """The longest first within a window of rollouts, as a batch is padded to its longest; or shuffled."""
    if reading.shuffle is not None:
        yield from sorted(run.rollouts(), key=lambda rollout: reading.place_of(rollout.rollout_id))
        return
    for near in chunks(run.rollouts(), window):
        yield from sorted(near, key=lambda rollout: -len(rollout.token_ids))


def _left(
    rollouts: Iterable[Rollout], size: int, shard: Shard, done: dict[str, str], progress: Progress
) -> Iterator[Rollout]:
    """The shard's rollouts that have no row yet.

    After a kill what is done are whole batches, so the others fall into the batches of an undisturbed run and are
    padded as there.
    """
    for number, rollout in enumerate(rollouts):
        if number // size % shard.count != shard.index:
            continue
        if rollout.rollout_id in done and done[rollout.rollout_id] == rollout.digest:
            progress.advance(1)
        else:
            yield rollout


def _input(rollout: Rollout, top: TopJoin | None, *, keeps_top: bool) -> ScoreInput:
    return ScoreInput(
        rollout_id=rollout.rollout_id,
        token_ids=rollout.token_ids,
        wanted=rollout.compared,
        report=None if top is None else top.get(rollout.rollout_id),
        keep_top=keeps_top,
    )


def _check_answers(spec: EngineSpec, asked: list[ScoreInput], rows: list[ReadingRow]) -> None:
    """What comes back must be what was sent, else it is an error and not a number."""
    if len(rows) != len(asked):
        raise EngineError(f"{spec}: was given {len(asked)} rollouts and answered {len(rows)}.")
    for item, row in zip(asked, rows, strict=True):
        digest = digest_of_ids(item.token_ids)
        if (row.rollout_id, row.digest) != (item.rollout_id, digest):
            raise EngineError(
                f"{spec}: was given the ids of rollout {item.rollout_id} (digest {digest}) and answered for "
                f"{row.rollout_id} (digest {row.digest})."
            )
        if len(row.logprobs) != len(item.token_ids):
            raise EngineError(
                f"{spec}: rollout {item.rollout_id} has {len(item.token_ids)} tokens, and {len(row.logprobs)} "
                "entries came back."
            )
