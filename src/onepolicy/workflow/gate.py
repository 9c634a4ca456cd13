"""A configuration -> may the command run? Everything that is not a pass of a check of now blocks it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from onepolicy.errors import OnePolicyError
from onepolicy.judgement.decide import decide, sentence
from onepolicy.records.past import Against, GateAnswer
from onepolicy.records.verdict import Judgement, Status
from onepolicy.suites import load_suite
from onepolicy.version import VERSION
from onepolicy.workflow.check import CheckRequest, check
from onepolicy.workflow.config import check_request, load_config
from onepolicy.workflow.gate_answer import could_not_run, undecided, write_answer
from onepolicy.workflow.gate_unchanged import GATE, Unchanged, unchanged_since
from onepolicy.workflow.history import against_last_green, dated_path, past_run, rows_in
from onepolicy.workflow.judge import JudgeRequest
from onepolicy.workflow.progress import Progress, Silent


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRequest:
    """What to decide, and where it is kept."""

    config: Path
    verdict: Path
    """the verdict file"""
    runs: Path = Path("runs")
    """the folder in which the run is made, beside those of before"""
    if_changed: timedelta | None = None
    """skip the check if nothing changed since a green run that is not older than this"""
    seen: Callable[[GateAnswer], None] = lambda _: None
    """is told of the answer before the verdict file is: what it raises is no pass"""
    now: Callable[[], datetime] = _now


def gate(request: GateRequest, *, progress: Progress | None = None) -> GateAnswer:
    """Decide, and write the verdict file: that nothing is decided before anything is computed, at the end the answer.

    Raises: OnePolicyError if it could not run; the verdict file then says so, unless that is what cannot be written.
    """
    shown = progress or Silent()
    write_answer(request.verdict, undecided(request.config, request.now()))
    try:
        answer = _decided(request, shown)
        request.seen(answer)
    except OnePolicyError as error:
        write_answer(request.verdict, could_not_run(request.config, request.now(), str(error)))
        raise
    write_answer(request.verdict, answer)
    return answer


def asked_of(request: CheckRequest) -> str:
    """SHA-256 of all that a check is asked for: engines, what the suite holds, sampling, limits with their floor."""
    asked = {
        "rollout": str(request.rollout),
        "trainer": str(request.trainer),
        "also": [str(spec) for spec in request.also],
        "suite": load_suite(request.suite).hash,
        "protocol": request.protocol.model_dump(mode="json"),
        "limits": request.limits.model_dump(mode="json"),
        "budget": request.budget,
        "top": request.top,
        "keep_text": request.keep_text,
        "statistics": request.statistics,
    }
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()


def _decided(request: GateRequest, progress: Progress) -> GateAnswer:
    asked = check_request(load_config(request.config))
    why_checked = ""
    if request.if_changed is not None:
        found = _unchanged(request, asked)
        if isinstance(found, Unchanged):
            return _skipped(request, found, asked_of(asked))
        why_checked = found
        progress.note(f"checking: {found}")
    path = dated_path(request.runs, request.config.stem, request.now())
    progress.note(f"run {path}")
    judgement = check(asked, path=path, progress=progress)
    answer = _answered(request, judgement, asked_of(asked)).model_copy(update={"why_checked": why_checked})
    write_answer(path / "judgements" / JudgeRequest().name / GATE, answer)
    return answer.model_copy(update={"against": _against(request, path, progress)})


def _unchanged(request: GateRequest, asked: CheckRequest) -> Unchanged | str:
    """The green run that still holds, or why the check is run. What goes wrong here is a reason to check."""
    assert request.if_changed is not None
    try:
        return unchanged_since(
            request.runs, asked, asked_of(asked), oldest=request.now() - request.if_changed, now=request.now()
        )
    except OnePolicyError as error:
        return f"it could not be seen whether anything changed: {error}"


def _skipped(request: GateRequest, found: Unchanged, asked: str) -> GateAnswer:
    kept = found.judgement
    same = f"nothing changed since {found.run.run} of {found.run.time:%Y-%m-%d %H:%M} UTC, whose answer holds."
    return _answered(request, kept, asked).model_copy(
        update={"unchanged_since": found.run.run, "sentence": f"Pass: {same} {kept.sentence}"}
    )


def _answered(request: GateRequest, judgement: Judgement, asked: str) -> GateAnswer:
    status = decide(judgement.verdicts)  # not what a stored judgement says of itself
    return GateAnswer(
        tool_version=VERSION,
        time=request.now(),
        config=str(request.config),
        asked=asked,
        allowed=status is Status.PASS,
        status=status,
        exit_status=status.exit_status,
        sentence=sentence(judgement.verdicts),
        run=judgement.run,
        numbers=judgement.numbers(),
    )


def _against(request: GateRequest, path: Path, progress: Progress) -> Against | None:
    """The comparison with the last green run; it informs, so that it is absent where there is none, which is said."""
    try:
        return against_last_green(rows_in(request.runs), past_run(path))
    except OnePolicyError as error:
        progress.note(f"not compared with a green run: {error}")
        return None
