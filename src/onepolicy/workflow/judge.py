"""A run -> verdicts. Reads the run and nothing else: no torch, no network."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from onepolicy.errors import UsageError
from onepolicy.judgement.limits import Limits
from onepolicy.numerics.checks import CHECKS as NUMERIC_CHECKS
from onepolicy.records.run import Run
from onepolicy.records.verdict import Judgement, Status, Verdict
from onepolicy.tokens.checks import CHECKS as TOKEN_CHECKS
from onepolicy.tokens.spell import Speller
from onepolicy.workflow.conclude import conclude
from onepolicy.workflow.measure import measure, measure_tokens
from onepolicy.workflow.precision import explained_by_precision
from onepolicy.workflow.progress import Progress, Silent
from onepolicy.workflow.record import ROLLOUT
from onepolicy.workflow.score import TRAINER
from onepolicy.workflow.whole import recording_verdicts, scoring_verdicts


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

    Raises: RunError if a reading is absent or damaged; ForeignReadingError if one scored other ids than the run's.
    """
    request = request or JudgeRequest()
    run = Run.open(path)
    judgement = judge_readings(run, request, progress=progress or Silent())
    run.write_judgement(request.name, judgement)
    return judgement


def judge_readings(run: Run, request: JudgeRequest, *, progress: Progress) -> Judgement:
    """The judgement, without keeping it. Raises: UsageError if a reading is to be compared with itself."""
    if request.rollout == request.trainer:
        raise UsageError(
            f"{run.path}: the reading {request.rollout!r} would be compared with itself, which always passes. Name two "
            f"of: {', '.join(run.reading_names())}."
        )
    readings = (request.rollout, request.trainer)
    measured = measure(run, run, request.rollout, request.trainer, progress=progress)
    tokens = measure_tokens(run, request.trainer, rollouts=measured.rollouts)
    token_verdicts = [check(tokens) for check in TOKEN_CHECKS]
    numeric = [check(measured, request.limits) for check in NUMERIC_CHECKS]
    whole = recording_verdicts(run, measured)
    whole += scoring_verdicts(run, request.rollout) + scoring_verdicts(run, request.trainer)
    if any(v.required and v.status is Status.FAIL for v in token_verdicts):
        numeric = [_without_meaning(verdict) for verdict in numeric]
    elif any(v.check == "mean_kl" and v.status is Status.FAIL for v in numeric):
        numeric = explained_by_precision(run, readings, measured, numeric)
    return conclude(
        [*whole, *token_verdicts, *numeric],
        measured,
        run=str(run.path),
        readings=readings,
        speller=_speller(run, readings),
    )


def _without_meaning(verdict: Verdict) -> Verdict:
    """A numeric verdict on ids that mean two things is unknown, not a number."""
    message = "the two sides do not read the same text from these ids, so their numbers say nothing about the policy."
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
