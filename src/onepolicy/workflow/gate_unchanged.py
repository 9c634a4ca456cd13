"""Did anything change since a green run? Whatever is unknown counts as changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from onepolicy.errors import RunError
from onepolicy.judgement.floor import refuse_expired
from onepolicy.judgement.limits import Limits
from onepolicy.records.past import PastRun
from onepolicy.records.reading import EngineInfo, ReadingInfo
from onepolicy.records.run import Run
from onepolicy.records.stored import read_json
from onepolicy.records.tokens import digest_of_ids
from onepolicy.records.verdict import Judgement, Status
from onepolicy.workflow.against_changes import prompt_ids
from onepolicy.workflow.check import CheckRequest
from onepolicy.workflow.gate_answer import read_answer
from onepolicy.workflow.gate_engines import SaysNow, say_now
from onepolicy.workflow.history import engines_of, is_green, rows_in
from onepolicy.workflow.judge import LIMITS, JudgeRequest, stored_judgement

GATE = "gate.json"
"""the gate's answer, beside the judgement of its run"""
_CONTENT = {"weights_hash": "a hash of its weights", "tokenizer_hash": "a hash of its tokenizer"}
"""of an engine: what must be known to be the same"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unchanged:
    """A green run whose answer holds now too."""

    run: PastRun
    judgement: Judgement


def unchanged_since(
    runs: Path, request: CheckRequest, asked: str, *, oldest: datetime, now: datetime
) -> Unchanged | str:
    """The newest run that was asked for the same, if it is green and all that can change a number is as it was.

    Else why not. Both engines are opened and say what they are. asked: as `gate.asked_of` gives it.
    Raises: OnePolicyError if an engine cannot be opened, or a floor of the limits has expired.
    """
    rows = rows_in(runs) if runs.is_dir() else []
    found = _newest(rows, asked, engines_of(str(request.rollout), str(request.trainer)))
    if isinstance(found, str):
        return found
    why = _stale(found, request.limits, oldest=oldest, now=now)
    if why:
        return why
    path = Path(found.run)
    run, judgement = Run.open(path), stored_judgement(path, JudgeRequest().name)
    if _judged_otherwise(judgement, path, request.limits):
        return f"{path} was judged again since, with other limits or of other readings"
    then = [run.reading_info(name) for name in (judgement.rollout_reading, judgement.trainer_reading)]
    refuse_expired(request.limits, then)
    says = say_now(request.rollout, request.trainer, suite=request.suite)
    changed = [*map(_changed, then, says), _template_changed(run, says[0])]
    if any(changed):
        return f"{next(filter(None, changed))} since {found.run}"
    return Unchanged(run=found, judgement=judgement) if is_green(path) else f"{path} does not hold what was judged"


def _newest(rows: Sequence[PastRun], asked: str, engines: str) -> PastRun | str:
    """The newest run that was asked for the same and passed, with nothing of its engines after it that did not."""
    same = [i for i, row in enumerate(rows) if row.run and row.status is Status.PASS and _asked(row) == asked]
    if not same:
        return "no run there that passed was asked for the same by `onepolicy gate`"
    found = rows[same[-1]]
    for row in rows[same[-1] + 1 :]:
        if row.status is not Status.PASS and (not row.pair or row.pair.endswith(f", {engines}")):
            return f"{row.run or 'a probe'} came after {found.run}, and is {row.status.value}"
    return found


def _asked(row: PastRun) -> str:
    """What the run was asked for; empty if no gate made it."""
    try:
        return read_answer(Path(row.run) / "judgements" / JudgeRequest().name / GATE).asked
    except RunError:
        return ""


def _judged_otherwise(judgement: Judgement, path: Path, limits: Limits) -> bool:
    usual = JudgeRequest()
    of_others = (judgement.rollout_reading, judgement.trainer_reading) != (usual.rollout, usual.trainer)
    return of_others or read_json(path / "judgements" / usual.name / LIMITS, Limits) != limits


def _stale(row: PastRun, limits: Limits, *, oldest: datetime, now: datetime) -> str:
    """Why a green run no longer holds, whatever the engines say; empty if it may."""
    if row.time is None or not oldest <= row.time <= now:
        when = "an unknown time" if row.time is None else f"{row.time:%Y-%m-%d %H:%M} UTC"
        return f"the last one that passed, {row.run}, is of {when}, and none before {oldest:%Y-%m-%d %H:%M} UTC counts"
    today = now.astimezone().date()  # of this machine, as `judge` takes it
    over = [waiver for waiver in limits.waivers if waiver.until < today]
    return f"the waiver of {over[0].check!r} ended on {over[0].until}" if over else ""


def _changed(then: ReadingInfo, says: SaysNow) -> str:
    """What the engine says of itself and of where it runs that is not as it was; empty if all is known and the same."""
    now = says.engine
    for name, what in _CONTENT.items():
        if not getattr(now, name) or not getattr(then.engine, name):
            return f"{now.name} does not say {what}, so that a change would not show"
    condition = says.decode if then.condition.path == "decode" else says.prefill
    pairs = (
        (_said(then.engine), _said(now)),
        (then.environment, _installed_where_then_loaded(then, says) | says.environment),
        (then.condition.model_dump(mode="json"), condition.model_dump(mode="json")),
    )
    return next((text for pair in pairs for text in _differing(*pair)), "")


def _installed_where_then_loaded(then: ReadingInfo, says: SaysNow) -> dict[str, str]:
    """Packages that a reading found loaded, as they are installed now: what was done before it may have loaded them."""
    return {name: version for name, version in says.installed.items() if name in then.environment}


def _template_changed(run: Run, says: SaysNow) -> str:
    """Whether a prompt of the run is of other ids now: a template may change and no hash with it."""
    if run.manifest.kind == "fixed":
        return ""
    for rollout in run.rollouts():
        if says.prompts.get(rollout.prompt_id) != digest_of_ids(prompt_ids(rollout)):
            return f"the prompt {rollout.prompt_id} becomes other ids, so that a chat template may have changed"
    return ""


def _said(info: EngineInfo) -> dict[str, object]:
    said: dict[str, object] = info.model_dump(mode="json")
    return said


def _differing(then: Mapping[str, object], now: Mapping[str, object]) -> list[str]:
    sides = {name: (then.get(name, "absent"), now.get(name, "absent")) for name in {**then, **now}}
    return [f"{name.replace('_', ' ')} changed from {a} to {b}" for name, (a, b) in sides.items() if a != b]
