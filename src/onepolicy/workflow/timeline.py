"""`onepolicy timeline`: a monitor's run, or the files of many steps -> what happened when, and the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from onepolicy.errors import UsageError
from onepolicy.judgement.decide import decide, sentence
from onepolicy.judgement.limits import Limits
from onepolicy.judgement.load import PRESETS, load_limits
from onepolicy.monitor.state import DECIDING, STATE_FILE, STEPS_FILE, MonitorState, read_state
from onepolicy.numerics.steps.jumps import named
from onepolicy.numerics.steps.verdicts import verdicts_of
from onepolicy.numerics.steps.watch import Watch
from onepolicy.records.step import Alarm, StepRecord
from onepolicy.records.timeline import Timeline
from onepolicy.records.verdict import Status, Verdict
from onepolicy.workflow.progress import Progress, Silent
from onepolicy.workflow.recorded import Tally, blocks_of, find_recording
from onepolicy.workflow.step_records import Steps, monitored, summaries
from onepolicy.workflow.whole import rows_verdicts


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOptions:
    """How recorded files are to be read, where their content does not say it."""

    format_name: str | None = None
    columns: Mapping[str, str] | None = None
    """our name -> theirs"""


def timeline(
    paths: str | Path | Sequence[str | Path],
    *,
    limits: Limits | None = None,
    files: FileOptions = FileOptions(),
    progress: Progress | None = None,
) -> Timeline:
    """What a training's steps show, one after the other and as a whole.

    paths: a monitor's run directory, or files, folders, globs or URLs of recorded rollouts that say their step.
    limits: those that the monitor was given, or the strict preset.
    Raises: RunError, DumpError, UsageError if something cannot be read.
    """
    named_paths = [paths] if isinstance(paths, str | Path) else list(paths)
    if not named_paths:
        raise UsageError("there is nothing to read. Name a monitor's run directory, or recorded files.")
    run = Path(named_paths[0])
    run = run.parent if run.name in (STEPS_FILE, STATE_FILE) else run
    if len(named_paths) == 1 and ((run / STEPS_FILE).exists() or (run / STATE_FILE).exists()):
        return of_monitor(run, limits=limits)
    recording = find_recording(named_paths, format_name=files.format_name, columns=files.columns)
    tally = Tally()
    records = summaries(blocks_of(recording, tally, progress or Silent()))
    imported = tally.imported(recording)
    notes = [*recording.notes]
    if tally.refused:
        first = f" First: {tally.refusals[0]}" if tally.refusals else ""
        notes.append(f"{tally.refused:,} of {tally.read:,} rows were refused and are in no number.{first}")
    if recording.format.trainer == "current":
        notes.append(
            "The trainer's logprobs are of the weights being trained, so that what is learnt within a step is in the "
            "numbers."
        )
    held = limits or load_limits("strict")
    return of_records(recording.name, records, limits=held, notes=notes, rows=rows_verdicts(imported))


def of_monitor(run: Path, *, limits: Limits | None = None) -> Timeline:
    """The steps that a monitor kept. Without its end marker the answer is no pass.

    Without other limits its alarms are those that were said in training; else they are what the same watch says now. A
    monitor that ended in fail or unknown stays at least that under any limits.
    """
    state = read_state(run)
    steps = monitored(run) if (run / STEPS_FILE).exists() else Steps(records=(), complete=False)
    held, note = (limits, "") if limits is not None else _limits_of(state)
    said = [alarm for record in steps.written for alarm in record.alarms]
    alarms = said if limits is None else [*watched(steps.written, held), *(a for a in said if a.kind == "monitor")]
    verdicts = verdicts_of(steps.written, alarms, held)
    verdicts = [_end(state, steps, so_far=decide(verdicts)), *verdicts]
    notes = [*steps.notes, *filter(None, [note, _kept(state, limits)])]
    source = Source(path=str(run), kind="monitor", notes=tuple(notes))
    return _timeline(source, steps.records, alarms, held, verdicts)


def of_records(
    path: str,
    records: Sequence[StepRecord],
    *,
    limits: Limits,
    notes: Sequence[str] = (),
    rows: Sequence[Verdict] = (),
) -> Timeline:
    """Steps from anywhere else, in order. rows: what is to say of the rows that were read."""
    source, alarms = Source(path=path, kind="files", notes=tuple(notes)), watched(records, limits)
    return _timeline(source, records, alarms, limits, [*rows, *verdicts_of(records, alarms, limits)])


def watched(records: Sequence[StepRecord], limits: Limits) -> list[Alarm]:
    """What is said of the steps as they come."""
    watch = Watch(limits)
    return [alarm for record in records for alarm in watch.add(record)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where records are from."""

    path: str
    kind: Literal["monitor", "files"]
    notes: tuple[str, ...] = ()


def _timeline(
    source: Source,
    records: Sequence[StepRecord],
    alarms: Sequence[Alarm],
    limits: Limits,
    verdicts: Sequence[Verdict],
) -> Timeline:
    return Timeline(
        path=source.path,
        source=source.kind,
        status=decide(verdicts),
        sentence=sentence(verdicts),
        verdicts=tuple(verdicts),
        events=tuple(named(records)),
        alarms=tuple(alarms),
        mean_kl_limit=limits.mean_kl,
        notes=source.notes,
        records=tuple(records),
    )


def _limits_of(state: MonitorState | None) -> tuple[Limits, str]:
    """What the monitor was given, as far as its folder says it; and a note if it does not."""
    given = "" if state is None else state.limits
    if given in PRESETS:
        return load_limits(given), ""
    try:
        return Limits.model_validate_json(given), ""
    except ValidationError:
        return load_limits("strict"), (
            f"{STATE_FILE} does not hold the limits that the monitor was given ({given or 'none'}). Its alarms are "
            "shown as they were said; the mean is held against the strict preset. Name them with --limits."
        )


def _found(state: MonitorState | None) -> Status:
    """What the monitor itself found, which nothing takes back; pass where it found nothing or has not ended."""
    if state is None:
        return Status.PASS
    if state.status == "fail" or DECIDING & state.alarms.keys():
        return Status.FAIL
    return Status.UNKNOWN if state.status == "unknown" else Status.PASS


def _kept(state: MonitorState | None, limits: Limits | None) -> str:
    """A note where other limits do not take back what the monitor found."""
    found = _found(state)
    if limits is None or state is None or found is Status.PASS:
        return ""
    return (
        f"The monitor ended with {found.value} under the limits that it was given ({state.why}). Other limits show the "
        "same steps in another light and do not take that back."
    )


def _end(state: MonitorState | None, steps: Steps, *, so_far: Status) -> Verdict:
    """Whether the training was seen to its end: without the end marker nothing passes.

    so_far: what its steps say. What the monitor ended with counts where it is worse.
    """
    status, message = Status.PASS, "the monitor saw the training to its end."
    found = _found(state)
    if state is None:
        status, message = Status.UNKNOWN, f"there is no {STATE_FILE}, so nobody says that the training was seen whole."
    elif found is Status.FAIL and so_far is not Status.FAIL:
        status, message = found, f"the monitor ended with fail: {state.why or 'alarms'}."
    elif state.status == "running":
        status = Status.UNKNOWN
        message = "the monitor has not ended: the training is under way, or was killed. What it wrote so far is shown."
    elif state.failures:
        failures = "; ".join(f"could not {what}: {why}" for what, why in state.failures.items())
        status, message = Status.UNKNOWN, f"the monitor itself {failures}."
    elif not steps.complete:
        status, message = Status.UNKNOWN, "the monitor has ended, but its last step is not whole."
    elif len(steps.written) != state.steps:
        status = Status.UNKNOWN
        message = (
            f"{STEPS_FILE} has {len(steps.written)} steps, and the monitor says that it saw {state.steps}: some were "
            "removed, or another process wrote there too."
        )
    elif found is Status.UNKNOWN and so_far is Status.PASS:
        status, message = found, f"the monitor ended with unknown: {state.why}."
    return Verdict(check="seen_to_its_end", status=status, message=message)
