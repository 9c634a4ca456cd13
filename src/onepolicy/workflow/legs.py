"""An engine held against itself, leg by leg, so that a failed comparison names its leg."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from onepolicy.engines.contract import Engine, Sampler
from onepolicy.engines.spec import EngineSpec
from onepolicy.errors import EngineError, UsageError
from onepolicy.integrations import check_spec
from onepolicy.judgement.decide import decide, sentence
from onepolicy.judgement.floor import refuse_expired
from onepolicy.judgement.limits import Limits
from onepolicy.judgement.load import load_limits
from onepolicy.numerics.checks.metric_limits import refuse_unknown_metrics
from onepolicy.numerics.legs.ladder import Ladder, NotHere, Rung, verdicts_of
from onepolicy.numerics.legs.rung import Held, rung_of, without_numbers
from onepolicy.records.files import write_text_atomically
from onepolicy.records.protocol import SamplingProtocol
from onepolicy.records.run import Run
from onepolicy.records.verdict import Judgement, Status
from onepolicy.suites import load_suite
from onepolicy.tokens.checks.same_text import same_text
from onepolicy.workflow.check import new_run_path
from onepolicy.workflow.legs_proof import cache_proof
from onepolicy.workflow.legs_readings import Readings, open_scorer
from onepolicy.workflow.legs_table import LEGS, NAMES, SAMPLED, Choice, Leg, Plan, Planned, Wanted, plan_legs
from onepolicy.workflow.measure import measure, measure_tokens
from onepolicy.workflow.progress import Progress, Silent
from onepolicy.workflow.record import ROLLOUT, RecordRequest, record_with
from onepolicy.workflow.score import check_recorded

SUITE = "fixed-quick"
BUDGET = 2_000
"""completion tokens of it, where neither a suite nor a budget is given: the first sixteen sequences or so"""
FILE = "legs.json"
"""beside the judgement of the same name: the whole ladder"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LegsRequest:
    """Which engine to hold against itself, and what else to hold against it."""

    engine: EngineSpec
    against: Mapping[str, EngineSpec] = field(default_factory=dict)
    """name of a leg -> another engine, such as the trainer, or a server that was started with other flags"""
    only: tuple[str, ...] = ()
    """legs by name, which then decide whatever they are; none: all of them"""
    without: tuple[str, ...] = ()
    suite: str | None = None
    """None: the rollouts that the run has, or else `SUITE`"""
    budget: int | None = None
    """completion tokens at most"""
    protocol: SamplingProtocol = SamplingProtocol(max_new_tokens=64)
    """of a suite of prompts, which the engine samples"""
    limits: Limits = Limits()
    limits_name: str = "strict"
    bitwise: tuple[str, ...] = ()
    """legs that are held against the preset `bitwise`"""
    name: str = "legs"
    """readings are called NAME-plain, NAME-repeat ..., the judgement NAME"""
    floor_of: tuple[str, ...] = ()
    """readings of the run for which a noise floor of the limits may have been measured, beside the plain one"""


def legs(
    request: LegsRequest, *, path: Path | None = None, resume: bool = False, progress: Progress | None = None
) -> Ladder:
    """Read the same tokens under every condition that must not matter, and say which is the first that does.

    What the run has of it already is used and not computed again. The ladder stays in the run's judgements.

    path: of a recorded run, whose rollouts are taken, or where a suite is recorded (a new folder if None).
    Raises: EngineError if the plain reading fails; RunError, UsageError.
    """
    shown = progress or Silent()
    choice = _checked(request)
    if path is None:
        if resume:
            raise UsageError("--resume needs --run DIR: the run to go on with.")
        path = new_run_path(request.suite or SUITE)
        shown.note(f"run {path}")
    plan = plan_legs(request.engine, choice)
    readings, plan = _read(request, path, plan, choice, resume=resume, progress=shown)
    ladder = _ladder(request, readings, plan)
    _keep(readings.run, request.name, ladder)
    return ladder


def _checked(request: LegsRequest) -> Choice:
    """What is asked for. Raises: UsageError for what cannot be, before anything runs."""
    for spec in (request.engine, *request.against.values()):
        check_spec(spec)
    has = {SAMPLED, *(planned.leg.name for planned in plan_legs(request.engine, Choice(known=NAMES)).legs)}
    taken = next((name for name in request.against if name in has), None)
    if taken is not None:  # a leg that only another server has is what --against is for
        raise UsageError(f"--against {taken}=...: there is a leg {taken!r} already. Give it another name.")
    if request.limits.waivers:
        raise UsageError("limits with waivers are for check and judge. Leave a leg out with --without NAME.")
    refuse_unknown_metrics(request.limits)
    known = tuple(dict.fromkeys((*NAMES, *request.against)))
    choice = Choice(only=request.only, without=request.without, known=known)
    choice.refuse_unknown()
    Choice(only=request.bitwise, known=known).refuse_unknown()
    return choice


# -- what is read -----------------------------------------------------------------------------------------------


def _read(
    request: LegsRequest, path: Path, plan: Plan, choice: Choice, *, resume: bool, progress: Progress
) -> tuple[Readings, Plan]:
    engine: Engine | None = None
    try:
        if not _takes_what_is_there(request, path):
            engine = open_scorer(request.engine)
            run = _recorded(engine, path, request, resume=resume, progress=progress)
        else:
            run = Run.open(path)
            check_recorded(run)
        readings = Readings(run=run, prefix=request.name, progress=progress)
        plan = _with_against(_with_sampled(plan, choice, run), request, choice)
        readings.read_all(plan.wanted, engine=engine)
    finally:
        if engine is not None:
            engine.close()
    _refuse_other_text(request, run, readings.names[plan.plain.name])
    sides = (readings.names[plan.plain.name], *request.floor_of)
    refuse_expired(request.limits, [run.reading_info(name) for name in sides])
    return readings, plan


def _takes_what_is_there(request: LegsRequest, path: Path) -> bool:
    if request.suite is not None or request.budget is not None or not (path / "manifest.json").exists():
        return False
    return Run.open(path).manifest.status == "complete"


def _recorded(engine: Engine, path: Path, request: LegsRequest, *, resume: bool, progress: Progress) -> Run:
    if not isinstance(engine, Sampler):
        raise EngineError(
            f"{request.engine}: {request.engine.engine} cannot encode a suite's text. Give --run DIR of a run that is "
            "recorded with the same tokenizer, without --suite and --budget."
        )
    budget = BUDGET if request.suite is None and request.budget is None else request.budget
    name = request.suite or SUITE
    wanted = RecordRequest(
        engine=request.engine, suite=name, protocol=request.protocol, budget=budget, top=0, keep_text=False
    )
    return record_with(engine, path, wanted, load_suite(name), resume=resume, progress=progress)


def _with_sampled(plan: Plan, choice: Choice, run: Run) -> Plan:
    """The plan with what the engine reported when it sampled the run's rollouts, if it did."""
    leg = next(choice.kind(leg) for leg in LEGS if leg.name == SAMPLED)
    if not choice.has(SAMPLED):
        return plan
    fresh = run.manifest.kind == "fresh" and run.manifest.imported is None
    if not fresh or run.manifest.rollout_engine != str(plan.plain.spec):
        why = "the run's tokens were not sampled by this engine (--suite quick has it sample some)"
        not_here = NotHere(name=leg.name, what=leg.what, why=why, asked=leg.name in choice.only)
        return replace(plan, not_here=(*plan.not_here, not_here))
    reading = Wanted(spec=plan.plain.spec, name=SAMPLED, recorded=ROLLOUT)
    return replace(plan, legs=_in_order((*plan.legs, Planned(leg=leg, base=plan.plain, reading=reading))))


def _in_order(legs: tuple[Planned, ...]) -> tuple[Planned, ...]:
    return tuple(sorted(legs, key=lambda planned: NAMES.index(planned.leg.name)))


def _with_against(plan: Plan, request: LegsRequest, choice: Choice) -> Plan:
    """The plan with the plain readings of other engines, which come last."""
    others = tuple(
        Planned(leg=Leg(name=name, what=f"against {spec}"), base=plan.plain, reading=Wanted(spec=spec, name=name))
        for name, spec in request.against.items()
        if choice.has(name)
    )
    not_here = tuple(one for one in plan.not_here if one.name not in request.against)
    return replace(plan, legs=(*plan.legs, *others), not_here=not_here)


def _refuse_other_text(request: LegsRequest, run: Run, plain: str) -> None:
    """Ids of another tokenizer are other text to the engine, and its legs on them say nothing."""
    verdict = same_text(measure_tokens(run, run, plain, rollouts=run.manifest.planned_rollouts))
    if verdict.required and verdict.status is Status.FAIL:
        raise UsageError(
            f"{request.engine}: the run {run.path} was recorded with another tokenizer: {verdict.message} Climb the "
            "legs on a run of the engine's own ids."
        )


# -- what it comes to -------------------------------------------------------------------------------------------


def _ladder(request: LegsRequest, readings: Readings, plan: Plan) -> Ladder:
    rungs = tuple(_rung(request, readings, planned) for planned in plan.legs)
    verdicts = verdicts_of(rungs, plan.not_here)
    plain = readings.names[plan.plain.name]
    return Ladder(
        engine=readings.run.reading_info(plain).engine,
        spec=str(request.engine),
        run=str(readings.run.path),
        plain=plain,
        limits=request.limits_name,
        rungs=rungs,
        not_here=plan.not_here,
        status=decide(verdicts),
        sentence=sentence(verdicts),
    )


def _rung(request: LegsRequest, readings: Readings, planned: Planned) -> Rung:
    limits, preset = _limits(request, planned.leg)
    held = Held(
        name=planned.leg.name,
        what=planned.leg.what,
        kind=planned.leg.kind,
        base=readings.names.get(planned.base.name, ""),
        reading=readings.names.get(planned.reading.name, ""),
        limits=limits,
        limits_name=preset,
    )
    failed = readings.failed.get(planned.base.name) or readings.failed.get(planned.reading.name)
    return without_numbers(held, failed) if failed else _measured(readings, planned, held)


def _measured(readings: Readings, planned: Planned, held: Held) -> Rung:
    run = readings.run
    title = f"comparing ({held.name})"
    measured = measure(run, run, held.base, held.reading, progress=readings.progress, title=title)
    held = replace(held, one_noise=_is_one_noise(run, held))
    if planned.leg.cached:
        proof = cache_proof(run, warm=held.reading, cold=held.base, cold_because=planned.cold_because)
        held = replace(held, proof=proof.verdict, from_cache=proof.from_cache)
    return rung_of(measured, held)


def _is_one_noise(run: Run, held: Held) -> bool:
    """Whether both readings say that they are of one kind of engine in one precision."""
    one, other = (run.reading_info(name).engine for name in (held.base, held.reading))
    return (one.name, one.dtype) == (other.name, other.dtype)


def _limits(request: LegsRequest, leg: Leg) -> tuple[Limits, str]:
    """What a leg is held against, and the name of the preset if it is not the ladder's."""
    preset = "bitwise" if leg.name in request.bitwise else leg.preset
    return (_preset(preset), preset) if preset else (request.limits, "")


@cache
def _preset(name: str) -> Limits:
    return load_limits(name)


def _keep(run: Run, name: str, ladder: Ladder) -> None:
    judgement = Judgement(
        run=str(run.path),
        rollout_reading=ladder.plain,
        trainer_reading=ladder.plain,
        status=ladder.status,
        sentence=ladder.sentence,
        verdicts=tuple(ladder.verdicts),
    )
    folder = run.write_judgement(name, judgement)
    write_text_atomically(folder / FILE, ladder.model_dump_json(indent=2) + "\n")
