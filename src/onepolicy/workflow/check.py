"""The main job: record, score, judge, and say why if it fails."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from onepolicy.engines.contract import Sampler
from onepolicy.engines.spec import EngineSpec
from onepolicy.errors import EngineError, UsageError
from onepolicy.integrations import check_spec, open_engine, open_sampler
from onepolicy.judgement.limits import Limits
from onepolicy.numerics.checks.metric_limits import refuse_unknown_metrics
from onepolicy.records.floor import Floor
from onepolicy.records.protocol import SamplingProtocol
from onepolicy.records.run import Run
from onepolicy.records.verdict import Judgement, Status
from onepolicy.suites import load_suite
from onepolicy.workflow.judge import JudgeRequest, judge
from onepolicy.workflow.progress import Progress, Silent
from onepolicy.workflow.record import ROLLOUT, RecordRequest, record_with
from onepolicy.workflow.score import TRAINER, ScoreRequest, score_with
from onepolicy.workflow.tables import also_name


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRequest:
    """Two engines and what to compare them on."""

    rollout: EngineSpec
    trainer: EngineSpec
    also: tuple[EngineSpec, ...] = ()
    """more readings of the trainer side, for example in the rollout side's precision"""
    suite: str = "quick"
    protocol: SamplingProtocol = SamplingProtocol()
    limits: Limits = Limits()
    budget: int | None = None
    top: int = 20
    keep_text: bool = True
    statistics: bool = False
    extend: bool = False
    """add to the complete run that is there what it lacks of this suite and budget: another look"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """What to find the cause of a fail with."""

    weights: Mapping[str, EngineSpec] = field(default_factory=dict)
    """other weights that the rollout side may have, `step 0` -> spec; older ones first"""


def check(
    request: CheckRequest,
    *,
    path: Path | None = None,
    resume: bool = False,
    why: Why | None = None,
    progress: Progress | None = None,
) -> Judgement:
    """Sample with one engine, score with the other, decide. The run stays at `path`.

    why: look for the cause if it fails, and keep it beside the judgement, which it never changes. None: do not.
    Raises: EngineError, RunError, UsageError; what was finished before stays and `resume` goes on from there.
    """
    shown = progress or Silent()
    if (resume or request.extend) and path is None:
        raise UsageError("--resume and --extend need --run DIR: the run to go on with.")
    for spec in (request.rollout, request.trainer, *request.also):
        check_spec(spec)
    load_suite(request.suite)
    refuse_unknown_metrics(request.limits)
    twice = next((spec for i, spec in enumerate(request.also) if spec in request.also[:i]), None)
    if twice is not None:
        raise UsageError(f"--also names {twice} twice. Name each further trainer once.")
    if path is None:
        path = new_run_path(request.suite)
        shown.note(f"run {path}")
    run = _record(path, request, resume=resume, progress=shown)
    resume = resume or request.extend
    _score(run, request.trainer, TRAINER, request, resume=resume, progress=shown)
    for spec in request.also:
        _score(run, spec, also_name(spec), request, resume=resume, progress=shown)
    judgement = judge(path, JudgeRequest(limits=request.limits), progress=shown)
    if why is not None and judgement.status is Status.FAIL:
        _find_cause(path, judgement, why, floor=request.limits.floor, progress=shown)
    return judgement


def _find_cause(path: Path, judgement: Judgement, asked: Why, *, floor: Floor | None, progress: Progress) -> None:
    from onepolicy.workflow.why import why  # noqa: PLC0415 - scipy's optimizers, which a check that passes needs not

    why(path, judgement, weights=asked.weights, floor=floor, progress=progress)


def new_run_path(suite: str) -> Path:
    """A folder under `runs/` that does not exist yet, named by the time and the suite."""
    stem = f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{Path(suite).stem}"
    path, number = Path("runs") / stem, 1
    while path.exists():
        number += 1
        path = Path("runs") / f"{stem}-{number}"
    return path


def _record(path: Path, request: CheckRequest, *, resume: bool, progress: Progress) -> Run:
    suite = load_suite(request.suite)
    wanted = RecordRequest(
        engine=request.rollout,
        suite=request.suite,
        protocol=request.protocol,
        budget=request.budget,
        top=request.top,
        statistics=request.statistics,
        keep_text=request.keep_text,
        extend=request.extend,
    )
    sampler: Sampler = open_sampler(request.rollout)
    try:
        if suite.is_fixed and not sampler.scores:
            raise EngineError(
                f"{request.rollout}: {request.rollout.engine} cannot score, and the suite {suite.name!r} is of fixed "
                "sequences, which both sides must score. Take a suite of prompts, such as quick."
            )
        run = record_with(sampler, path, wanted, suite, resume=resume, progress=progress)
        if suite.is_fixed:
            ours = ScoreRequest(
                engine=request.rollout, name=ROLLOUT, report_ids_of=None, statistics=request.statistics, resume=resume
            )
            score_with(sampler, run, ours, progress=progress)
        return run
    finally:
        sampler.close()


def _score(run: Run, spec: EngineSpec, name: str, request: CheckRequest, *, resume: bool, progress: Progress) -> None:
    engine = open_engine(spec)
    if getattr(engine, "is_follower", False):
        engine.close()
        raise EngineError("`check` cannot run under torchrun; use `record`, `score` under torchrun, then `judge`.")
    try:
        score_with(
            engine,
            run,
            ScoreRequest(engine=spec, name=name, statistics=request.statistics, resume=resume),
            progress=progress,
        )
    finally:
        engine.close()
