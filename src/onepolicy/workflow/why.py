"""A judgement that failed -> why, kept beside it and shown at the top of its report."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from onepolicy.engines.spec import EngineSpec
from onepolicy.errors import OnePolicyError
from onepolicy.records.finding import Diagnosis
from onepolicy.records.floor import Floor
from onepolicy.records.run import Run
from onepolicy.records.verdict import Judgement, Status
from onepolicy.report.html import html
from onepolicy.workflow.diagnose import DiagnoseRequest, diagnose
from onepolicy.workflow.judge import stored_judgement
from onepolicy.workflow.progress import Progress, Silent


def why(
    path: Path,
    judgement: Judgement,
    *,
    weights: Mapping[str, EngineSpec] | None = None,
    floor: Floor | None = None,
    progress: Progress | None = None,
) -> Diagnosis | None:
    """Why a judgement that the run keeps failed; None if it did not fail, or if it could not be found out.

    The answer is kept as `keep_diagnosis` does. The judgement stays as it is: what goes wrong here is a note.
    weights: other weights of the trainer, `step 0` -> spec; older ones first. floor: that the limits rest on.
    """
    if judgement.status is not Status.FAIL:
        return None
    shown = progress or Silent()
    shown.note("the check failed; looking for the cause")
    request = DiagnoseRequest(
        rollout=judgement.rollout_reading,
        trainer=judgement.trainer_reading,
        weights=weights or {},
        floor=floor,
        verdicts=judgement.verdicts,
    )
    try:
        found = diagnose(path, request, progress=shown)
    except OnePolicyError as error:
        shown.note(f"the cause was not found out: {error}")
        return None
    keep_diagnosis(path, found, progress=shown)
    return found


def keep_diagnosis(path: Path, found: Diagnosis, *, progress: Progress | None = None) -> list[str]:
    """Keep a diagnosis beside each judgement on the same readings, and draw their reports anew; returns their names.

    A run that cannot be written, or a judgement that is damaged, is a note.
    """
    run, names = Run.open(path), []
    try:
        for name in run.judgement_names():
            if is_on_the_same_readings(run.judgement(name), found):
                _keep_beside(run, name, found)
                names.append(name)
    except OnePolicyError as error:
        (progress or Silent()).note(f"the diagnosis is not kept in the run: {error}")
    return names


def is_on_the_same_readings(judgement: Judgement, found: Diagnosis) -> bool:
    """Whether a diagnosis explains what a judgement compared."""
    judged = (judgement.rollout_reading, judgement.trainer_reading)
    return judged == (found.rollout_reading, found.trainer_reading)


def _keep_beside(run: Run, name: str, found: Diagnosis) -> None:
    """The page is drawn first: a judgement that cannot be shown keeps no findings."""
    data = run.report_data(name)
    page = html(stored_judgement(run.path, name), data, found)
    run.write_diagnosis(name, found)
    run.write_report(name, data, {"report.html": page})
