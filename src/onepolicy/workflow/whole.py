"""Is what is judged all that was asked for?"""

from __future__ import annotations

from onepolicy.numerics.evidence import KEPT
from onepolicy.numerics.measurement import Measurement
from onepolicy.records.manifest import Imported
from onepolicy.records.run import Run
from onepolicy.records.verdict import Evidence, Status, Verdict
from onepolicy.workflow.record import ROLLOUT


def is_snapshot(run: Run) -> bool:
    """Whether a run is what `onepolicy snapshot take` makes: fixed sequences with one reading, `rollout`."""
    return run.manifest.kind == "fixed" and run.reading_names() == [ROLLOUT]


def to_finish(run: Run) -> str:
    """The command that records what a run lacks."""
    if is_snapshot(run):
        return f"onepolicy snapshot take ... --output {run.path} --resume"
    return f"onepolicy record ... --run {run.path} --resume"


def recording_verdicts(run: Run, measured: Measurement) -> list[Verdict]:
    """Unknown if the run is not recorded to its end; nothing otherwise."""
    planned, imported = run.manifest.planned_rollouts, run.manifest.imported
    refused = [] if imported is None else rows_verdicts(imported)
    if run.manifest.status == "complete" and measured.rollouts == planned:
        return refused
    again = f"onepolicy import FILES --run {run.path}"
    again = to_finish(run) if imported is None else again
    how = f"{'Go on' if imported is None else 'Read them again'} with: {again}"
    if run.manifest.suite == "monitor":
        how = "A monitor was killed while it kept them, or is at it; the next one on this folder drops the half."
    return [
        *refused,
        Verdict(
            check="recording",
            status=Status.UNKNOWN,
            quantity="rollouts",
            value=measured.rollouts,
            limit=planned,
            unit="rollouts",
            message=(
                f"{measured.rollouts} of {planned} rollouts are recorded: what is missing may differ from what is "
                f"there. {how}"
            ),
        ),
    ]


def stale_verdicts(run: Run) -> list[Verdict]:
    """Unknown if an imported run's rollouts were sampled by other weights than those that scored them."""
    stale = run.manifest.imported.stale if run.manifest.imported is not None else ""
    return [Verdict(check="same_weights", status=Status.UNKNOWN, message=stale)] if stale else []


def rows_verdicts(imported: Imported) -> list[Verdict]:
    """Unknown if rows of recorded files were refused; nothing if all were used."""
    if not imported.refused:
        return []
    return [
        Verdict(
            check="recorded_rows",
            status=Status.UNKNOWN,
            quantity="rows_used",
            value=imported.used,
            limit=imported.read,
            unit="rows",
            message=(
                f"{imported.refused} of {imported.read} rows contradict themselves and were refused: what is missing "
                f"may differ from what is there. The first: {imported.refusals[0]}"
            ),
            evidence=tuple(Evidence(rollout_id="", note=refusal) for refusal in imported.refusals),
        )
    ]


def scoring_verdicts(run: Run, name: str) -> list[Verdict]:
    """Unknown if a reading has no row for some rollout, whatever share of the tokens that is; nothing otherwise."""
    scored, recorded = run.reading_rollout_ids(name), run.rollout_ids()
    without = [rollout_id for rollout_id in recorded if rollout_id not in scored]
    if not without:
        return []
    return [
        Verdict(
            check="scoring",
            status=Status.UNKNOWN,
            quantity="rollouts",
            value=len(recorded) - len(without),
            limit=len(recorded),
            unit="rollouts",
            message=(
                f"reading {name!r} has {len(recorded) - len(without)} of {len(recorded)} rollouts; {without[0]} is the "
                "first that it lacks. Run the command that made the reading again with --resume."
            ),
            evidence=tuple(Evidence(rollout_id=i, note=f"no row in {name!r}") for i in without[:KEPT]),
        )
    ]
