"""A run -> verdicts. Reads the run and nothing else: no torch, no network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from onepolicy.errors import RunError, UsageError
from onepolicy.judgement.decide import decide, sentence
from onepolicy.judgement.floor import refuse_expired
from onepolicy.judgement.limits import Limits
from onepolicy.judgement.looks import Look
from onepolicy.judgement.waive import applied
from onepolicy.numerics.checks import CHECKS as NUMERIC_CHECKS
from onepolicy.numerics.checks.compared_rollouts import compared_rollouts
from onepolicy.numerics.checks.kept_set import kept_set
from onepolicy.numerics.checks.metric_limits import metric_limits
from onepolicy.numerics.checks.one_weight_version import one_weight_version
from onepolicy.numerics.checks.two_columns import two_columns
from onepolicy.numerics.measurement import Measurement
from onepolicy.records.files import disk_errors
from onepolicy.records.reading import ReadingInfo
from onepolicy.records.run import Run
from onepolicy.records.verdict import Judgement, Status, Verdict
from onepolicy.report.html import html
from onepolicy.report.junit import junit
from onepolicy.sampling.checks.one_protocol import CHECK as ONE_PROTOCOL
from onepolicy.sampling.checks.one_protocol import several_protocols
from onepolicy.tokens.checks import CHECKS as TOKEN_CHECKS
from onepolicy.tokens.checks.history import history
from onepolicy.tokens.round_trip import TokenMeasurement
from onepolicy.tokens.shown import kept_breaks
from onepolicy.tokens.spell import Speller
from onepolicy.workflow.conclude import conclude
from onepolicy.workflow.measure import measure, measure_tokens
from onepolicy.workflow.precision import explained_by_precision
from onepolicy.workflow.progress import Progress, Silent
from onepolicy.workflow.record import ROLLOUT
from onepolicy.workflow.score import TRAINER
from onepolicy.workflow.tables import limit_options, report_data
from onepolicy.workflow.whole import recording_verdicts, scoring_verdicts, stale_verdicts

LIMITS = "limits.json"
"""beside the judgement: the limits it was made with; JSON is YAML, so --limits takes it"""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeRequest:
    """Which readings to compare, and against what."""

    rollout: str = ROLLOUT
    trainer: str = TRAINER
    limits: Limits = Limits()
    name: str = "default"
    """of the judgement inside the run"""


def judge(path: Path, request: JudgeRequest | None = None, *, progress: Progress | None = None) -> Judgement:
    """Compare two readings of a run, keep the judgement in the run, and return it.

    What an earlier judgement of this name kept as its diagnosis goes: it may be of other data.
    Raises: RunError if a reading is absent or damaged; ForeignReadingError if one scored other ids than the run's.
    """
    request = request or JudgeRequest()
    run = Run.open(path)
    judgement, measured, tokens = _judged(run, request, progress or Silent())
    limits = limit_options(request.limits, run.path / "judgements" / request.name / LIMITS)
    data = report_data(run, (request.rollout, request.trainer), measured, limits)
    data = data.model_copy(update={"token_breaks": kept_breaks(tokens)})
    pages = {"report.html": html(judgement, data), "junit.xml": junit(judgement)}
    run.write_report(request.name, data, {**pages, LIMITS: request.limits.model_dump_json(indent=2) + "\n"})
    _drop_diagnosis(run, request.name)
    run.write_judgement(request.name, judgement)
    return judgement


def look_at(run: Run, measured: Measurement, whole: list[Verdict], *, rollout: str, trainer: ReadingInfo) -> None:
    """Say in `measured` which look this is, and keep it in the run if its interval could let the run pass.

    Fixed tokens have no interval, and a run with gaps (`whole` says which) cannot pass.
    """
    if measured.is_kl and not whole:
        data = run.seen(rollout, trainer)
        measured.look = Look(number=run.looks().number_of(data))
        run.write_look(data)


def stored_judgement(path: Path, name: str) -> Judgement:
    """A judgement that a run keeps. Raises: RunError if there is none, or its answer is not what its verdicts say."""
    judgement = Run.open(path).judgement(name)
    if (judgement.status, judgement.sentence) != (decide(judgement.verdicts), sentence(judgement.verdicts)):
        raise RunError(
            f"{path}: the judgement {name!r} says {judgement.status.value!r}, which does not follow from its verdicts. "
            f"The file was changed; make it again with: onepolicy judge {path}"
        )
    return judgement


def stored_html(path: Path, name: str) -> str:
    """The report of a judgement that a run keeps, drawn anew. Raises: RunError as `stored_judgement` does."""
    run, judgement = Run.open(path), stored_judgement(path, name)
    return html(judgement, run.report_data(name), run.diagnosis(name))


def judge_readings(run: Run, request: JudgeRequest, *, progress: Progress) -> Judgement:
    """The judgement, without keeping it. Raises: UsageError if a reading is to be compared with itself."""
    return _judged(run, request, progress)[0]


def _drop_diagnosis(run: Run, name: str) -> None:
    path = run.path / "judgements" / name / "findings.json"
    with disk_errors(path):
        path.unlink(missing_ok=True)


def _judged(run: Run, request: JudgeRequest, progress: Progress) -> tuple[Judgement, Measurement, TokenMeasurement]:
    if request.rollout == request.trainer:
        raise UsageError(
            f"{run.path}: the reading {request.rollout!r} would be compared with itself, which always passes. Name two "
            f"of: {', '.join(run.reading_names())}."
        )
    readings = (request.rollout, request.trainer)
    refuse_expired(request.limits, [run.reading_info(name) for name in readings])
    measured = measure(run, run, request.rollout, request.trainer, progress=progress)
    whole = recording_verdicts(run, measured)
    if run.manifest.imported is not None:
        whole += recorded_verdicts(measured, request.limits)
    whole += scoring_verdicts(run, request.rollout) + scoring_verdicts(run, request.trainer)
    look_at(run, measured, whole, rollout=request.rollout, trainer=run.reading_info(request.trainer))
    tokens = measure_tokens(run, run, request.trainer, rollouts=measured.rollouts)
    several = several_protocols(run.spans(), of_run=run.manifest.protocol.hash)
    verdicts = judged_in_order(tokens, measured, request.limits, stale=[*stale_verdicts(run), *several])
    if any(v.check == "mean_kl" and v.status is Status.FAIL for v in verdicts):
        verdicts = explained_by_precision(run, readings, measured, verdicts)
    judgement = conclude(
        applied([*whole, *verdicts], request.limits, today=date.today()),
        measured,
        run=str(run.path),
        readings=readings,
        speller=_speller(run, readings),
    )
    return judgement, measured, tokens


def judged_in_order(
    tokens: TokenMeasurement, measured: Measurement, limits: Limits, *, stale: Sequence[Verdict] = ()
) -> list[Verdict]:
    """Tokens first, then whose they are; if they are not those of both sides, or of one policy, numbers say nothing."""
    whose = [*stale, *one_weight_version(measured)]
    token_verdicts = [*(check(tokens) for check in TOKEN_CHECKS), *history(tokens)]
    failed = [v.check for v in token_verdicts if v.required and v.status is Status.FAIL]
    if failed:
        why = f"{failed[0]} failed: these are not the tokens of both sides, so numbers say nothing about the policy."
        numeric = [_without_meaning(verdict, why) for verdict in _numbers(measured, limits)]
        return token_verdicts + whose + numeric
    return token_verdicts + numbers_of_one_policy(whose, measured, limits)


def recorded_verdicts(measured: Measurement, limits: Limits) -> list[Verdict]:
    """What can be wrong with the columns of a file, and not with what an engine computed."""
    return [*compared_rollouts(measured, limits), *two_columns(measured, limits)]


def numbers_of_one_policy(whose: list[Verdict], measured: Measurement, limits: Limits) -> list[Verdict]:
    """Whose tokens they are, and the numbers: unknown if the tokens are not all of one pair of weights."""
    numeric = _numbers(measured, limits)
    if any(verdict.required and verdict.status is Status.UNKNOWN for verdict in whose):
        why = "the tokens are not all of one pair of weights; the report has the numbers of each version apart."
        if any(verdict.check == ONE_PROTOCOL for verdict in whose):
            why = "the tokens were not all sampled under one protocol."
        numeric = [_without_meaning(verdict, why) for verdict in numeric]
    return whose + numeric


def _numbers(measured: Measurement, limits: Limits) -> list[Verdict]:
    return [
        *(check(measured, limits) for check in NUMERIC_CHECKS),
        *kept_set(measured, limits),
        *metric_limits(measured, limits),
    ]


def _without_meaning(verdict: Verdict, message: str) -> Verdict:
    """A numeric verdict on tokens that are not those of both sides, or of one policy, is unknown, not a number."""
    nothing = {
        "status": Status.UNKNOWN,
        "value": None,
        "low": None,
        "high": None,
        "evidence": (),
        "message": message,
    }
    return verdict.model_copy(update=nothing) if verdict.required else verdict


def _speller(run: Run, readings: tuple[str, str]) -> Speller:
    """Spells with the tokenizer of either side; by number if there is none or the run keeps no text."""
    hashes = [run.reading_info(name).engine.tokenizer_hash for name in readings]
    known = next((name for name in hashes if name), None)
    return Speller(run.tokenizer_file(known) if known and run.manifest.keeps_text else None)
