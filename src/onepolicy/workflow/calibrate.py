"""An engine against itself -> its noise floor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from onepolicy.engines.contract import Engine, Sampler
from onepolicy.engines.options import read_options
from onepolicy.engines.spec import EngineSpec
from onepolicy.errors import EngineError, RunError, UsageError
from onepolicy.integrations import check_spec, open_engine, options_of
from onepolicy.numerics.buckets import CONFIDENCE_EDGES, Cells
from onepolicy.numerics.measurement import Measurement
from onepolicy.records.files import write_text_atomically
from onepolicy.records.floor import (
    KNOWN_VARIATIONS,
    Floor,
    FloorBucket,
    Variation,
    environment_changes,
    largest,
)
from onepolicy.records.run import Run
from onepolicy.records.verdict import Status
from onepolicy.suites import load_suite
from onepolicy.tokens.checks.same_text import same_text
from onepolicy.workflow.check import new_run_path
from onepolicy.workflow.environment import environment
from onepolicy.workflow.measure import measure, measure_tokens
from onepolicy.workflow.progress import Progress, Silent
from onepolicy.workflow.record import RecordRequest, record_with
from onepolicy.workflow.score import ScoreRequest, check_recorded, score_with

SUITE = "fixed-quick"
ORDER_SEED = 1
_BASE = "base"


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrateRequest:
    """Which engine to hold against itself, and on what."""

    engine: EngineSpec
    output: Path
    suite: str | None = None
    """of fixed sequences; None: the rollouts that the run has, or else `SUITE`"""
    budget: int | None = None
    """completion tokens at most"""
    name: str = "floor"
    """readings are called NAME-base, NAME-repeat ..."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planned:
    """One reading to make."""

    name: str
    changes: Mapping[str, str]
    shuffle: int | None = None


def calibrate(
    request: CalibrateRequest, *, path: Path | None = None, resume: bool = False, progress: Progress | None = None
) -> Floor:
    """Score the same tokens several times under changes that must not matter, and write how far the readings differ.

    path: of a recorded run, whose rollouts are taken, or where a fixed suite is recorded (a new folder if None).
    Raises: EngineError, RunError, UsageError; what was scored before stays and `resume` goes on from there.
    """
    shown = progress or Silent()
    check_spec(request.engine)
    if path is None:
        path = _new_path(request, resume=resume)
        shown.note(f"run {path}")
    planned = _planned(request.engine)
    run = _scored(request, path, planned, resume=resume, progress=shown)
    floor = _floor(request, run, planned, shown)
    write_text_atomically(request.output, floor.model_dump_json(indent=2) + "\n")
    return floor


def _new_path(request: CalibrateRequest, *, resume: bool) -> Path:
    if resume:
        raise UsageError("--resume needs --run DIR: the run to go on with.")
    return new_run_path(request.suite or SUITE)


def _planned(spec: EngineSpec) -> tuple[_Planned, ...]:
    """The readings, the base first; those without a change of options come before the engine is started anew."""
    options = read_options(spec, options_of(spec.engine))
    return (
        _Planned(name=_BASE, changes={}),
        _Planned(name="repeat", changes={}),
        _Planned(name="order", changes={}, shuffle=ORDER_SEED),
        *(
            _Planned(name=name, changes={option: str(value) for option, value in changes.items()})
            for name, changes in options.variations().items()
        ),
    )


def _scored(
    request: CalibrateRequest, path: Path, planned: tuple[_Planned, ...], *, resume: bool, progress: Progress
) -> Run:
    plain = [reading for reading in planned if not reading.changes]
    engine = _opened(request.engine)
    try:
        run = _recorded(engine, path, request, resume=resume, progress=progress)
        for reading in plain:
            _score(engine, run, request, reading, resume=resume, progress=progress)
    finally:
        engine.close()
    for reading in planned[len(plain) :]:
        engine = _opened(_spec(request, reading))
        try:
            _score(engine, run, request, reading, resume=resume, progress=progress)
        finally:
            engine.close()
    return run


def _opened(spec: EngineSpec) -> Engine:
    engine = open_engine(spec)
    if not engine.scores:
        engine.close()
        raise EngineError(
            f"{spec}: {spec.engine} cannot score yet, so it has no noise floor. Calibrate the other side."
        )
    if getattr(engine, "is_follower", False):
        engine.close()
        raise EngineError("`calibrate` cannot run under torchrun; let it start the ranks: callable:...?ranks=2")
    return engine


def _spec(request: CalibrateRequest, reading: _Planned) -> EngineSpec:
    return replace(request.engine, options={**request.engine.options, **reading.changes})


def _recorded(engine: Engine, path: Path, request: CalibrateRequest, *, resume: bool, progress: Progress) -> Run:
    """The run that is there, if it is whole and nothing else is asked for; else a fixed suite in the engine's ids."""
    if _takes_what_is_there(request, path):
        run = Run.open(path)
        check_recorded(run)
        return run
    if not isinstance(engine, Sampler):
        raise EngineError(
            f"{request.engine}: {request.engine.engine} cannot encode a suite's text. Give --run DIR of a run that is "
            "recorded with the same tokenizer, without --suite and --budget."
        )
    suite = load_suite(request.suite or SUITE)
    if not suite.is_fixed:
        raise UsageError(
            f"the suite {suite.name!r} is of prompts, and calibrate samples nothing. Take a suite of fixed sequences, "
            "such as fixed-quick, or give --run DIR of recorded rollouts."
        )
    wanted = RecordRequest(engine=request.engine, suite=request.suite or SUITE, budget=request.budget, keep_text=False)
    return record_with(engine, path, wanted, suite, resume=resume, progress=progress)


def _takes_what_is_there(request: CalibrateRequest, path: Path) -> bool:
    if request.suite is not None or request.budget is not None or not (path / "manifest.json").exists():
        return False
    return Run.open(path).manifest.status == "complete"


def _score(
    engine: Engine, run: Run, request: CalibrateRequest, reading: _Planned, *, resume: bool, progress: Progress
) -> None:
    name = _name(request, reading.name)
    if name in run.reading_names():
        _check_environment(run, name)
    wanted = ScoreRequest(
        engine=_spec(request, reading), name=name, report_ids_of=None, shuffle=reading.shuffle, resume=resume
    )
    score_with(engine, run, wanted, progress=progress)


def _name(request: CalibrateRequest, variation: str) -> str:
    return f"{request.name}-{variation}"


def _check_environment(run: Run, name: str) -> None:
    """A floor is of one environment: a reading that was begun in another one cannot be gone on with."""
    changed = environment_changes(run.reading_info(name).environment, environment())
    if changed:
        raise RunError(
            f"{run.path}: the reading {name!r} was begun in another environment: {'; '.join(changed)}. A noise floor "
            "belongs to one; calibrate into another run, or under another --name."
        )


# -- what was measured ------------------------------------------------------------------------------------------


def _floor(request: CalibrateRequest, run: Run, planned: tuple[_Planned, ...], progress: Progress) -> Floor:
    base = run.reading_info(_name(request, _BASE))
    _check_text(request, run, base.name)
    variations = tuple(_variation(request, run, reading, progress) for reading in planned[1:])
    found = {variation.name for variation in variations}
    return Floor(
        engine=base.engine,
        environment=base.environment,
        meaning=base.meaning,
        suite=run.manifest.suite,
        suite_hash=run.manifest.suite_hash,
        command_options=tuple(_command_options(request, run)),
        base=base.name,
        variations=variations,
        absent=tuple(name for name in KNOWN_VARIATIONS if name not in found),
        mean_kl=largest(variations, "mean_kl"),
        max_abs_d=largest(variations, "max_abs_d"),
        worst_rollout_kl=largest(variations, "worst_rollout_kl"),
    )


def _command_options(request: CalibrateRequest, run: Run) -> Iterator[str]:
    """What makes the same floor anew: a suite is recorded again, rollouts that were there are taken again."""
    own = (run.manifest.suite, run.manifest.rollout_engine) == (SUITE, str(request.engine))
    if request.suite is not None:
        yield from ("--suite", request.suite)
    elif not own:
        yield from ("--run", str(run.path))
    if request.budget is not None:
        yield from ("--budget", str(request.budget))
    yield from ("--output", str(request.output))


def _check_text(request: CalibrateRequest, run: Run, base: str) -> None:
    """Ids of another tokenizer are other text to the engine, and its noise on them says nothing."""
    verdict = same_text(measure_tokens(run, run, base, rollouts=run.manifest.planned_rollouts))
    if verdict.required and verdict.status is Status.FAIL:
        raise UsageError(
            f"{request.engine}: the run {run.path} was recorded with another tokenizer: {verdict.message} Calibrate on "
            "a run of the engine's own ids."
        )


def _variation(request: CalibrateRequest, run: Run, reading: _Planned, progress: Progress) -> Variation:
    base, name = _name(request, _BASE), _name(request, reading.name)
    measured = measure(run, run, base, name, progress=progress, title=f"comparing ({name})")
    _check_measured(request, run, name, measured)
    return Variation(
        name=reading.name,
        changes=dict(reading.changes),
        reading=name,
        prompts=len(measured.clusters),
        tokens=measured.valid,
        tokens_without=measured.compared - measured.valid,
        mean_k3=measured.mean("k3"),
        worst_rollout_k3=measured.worst_by_kl[0].mean_k3,
        mean_abs_d=measured.mean("abs_d"),
        max_abs_d=measured.worst_by_token[0].max_abs_d,
        bitwise_share=measured.totals.bitwise_equal / measured.valid,
        by_confidence=_by_confidence(measured.buckets.by_confidence()),
    )


def _check_measured(request: CalibrateRequest, run: Run, name: str, measured: Measurement) -> None:
    if measured.invalid.rollouts:
        first = measured.invalid.first[0]
        raise EngineError(
            f"{request.engine}: gave something that is no logprob in {measured.invalid.rollouts} rollouts of the run "
            f"{run.path}, first in {first.rollout_id} at position {first.position} ({_name(request, _BASE)} "
            f"{first.rollout_logprob:g}, {name} {first.trainer_logprob:g}). Such an engine has no noise floor; mend it."
        )
    if not measured.valid:
        raise EngineError(
            f"{request.engine}: no token of the run {run.path} has a logprob in both {_name(request, _BASE)!r} and "
            f"{name!r}, so there is nothing to compare."
        )


def _by_confidence(cells: Cells) -> tuple[FloorBucket, ...]:
    tokens, abs_d, k2 = (cells.column(name) for name in ("tokens", "abs_d", "k2"))
    return tuple(
        FloorBucket(
            low=low,
            high=high,
            tokens=int(tokens[i]),
            mean_abs_d=float(abs_d[i] / tokens[i]),
            rms_d=float(np.sqrt(2 * k2[i] / tokens[i])),
            max_abs_d=float(cells.largest[i]),
        )
        for i, (low, high) in enumerate(pairwise(CONFIDENCE_EDGES))
        if tokens[i]
    )
