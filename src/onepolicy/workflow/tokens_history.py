"""`onepolicy tokens history`: trajectories of runs and files -> which turn a later prompt does not hold as sampled."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from onepolicy.errors import UsageError
from onepolicy.records.run import Run
from onepolicy.records.token_breaks import HistoryReport
from onepolicy.records.verdict import Status
from onepolicy.tokens.sides import Reader
from onepolicy.tokens.trajectory import History, Trajectory, history_verdict
from onepolicy.workflow.measure import readers
from onepolicy.workflow.progress import Progress, Silent
from onepolicy.workflow.rollout_files import count_rows
from onepolicy.workflow.score import TRAINER
from onepolicy.workflow.tokens_servers import reader_for
from onepolicy.workflow.trajectories import trajectories_in, trajectories_of, trajectory_count


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Source:
    """The trajectories of one target, and the tokenizer of their ids."""

    target: str
    trajectories: Iterable[Trajectory]
    count: int
    """about how many there are"""
    reader: Reader
    tokenizer: str
    with_text: bool = True


def tokens_history(targets: tuple[str, ...], *, tokenizer: str = "", progress: Progress | None = None) -> HistoryReport:
    """Hold each call's prompt against the prompt and completion before it.

    targets: run directories, or JSONL files as `workflow.trajectories` reads them. tokenizer: as `open_tokenizer` takes
    it; empty: the run's own.
    Raises: UsageError for a file that is malformed, with its row and field, or a target without a tokenizer;
    TokenizerError, RunError.
    """
    shown, found = progress or Silent(), History()
    with ExitStack() as stack:
        given = reader_for(tokenizer, stack) if tokenizer else None
        sources = [_source(target, given, tokenizer) for target in targets]
        for source in sources:
            shown.start(f"history of {source.target}", source.count)
            for trajectory in _shown(source, shown):
                found.add(trajectory, source.reader, with_text=source.with_text)
    return _report(found, targets, ", ".join(dict.fromkeys(source.tokenizer for source in sources)))


def _shown(source: _Source, progress: Progress) -> Iterator[Trajectory]:
    for trajectory in source.trajectories:
        yield trajectory
        progress.advance(1)


def _source(target: str, given: Reader | None, name: str) -> _Source:
    path = Path(target)
    if path.is_dir():
        return _of_run(target, Run.open(path), given, name)
    if not path.is_file():
        raise UsageError(f"{target}: no run directory and no file of trajectories.")
    if given is None:
        raise UsageError(f"{target}: no run, so it brings no tokenizer. Name the one of its ids with --tokenizer.")
    return _Source(
        target=target, trajectories=trajectories_in(path), count=count_rows(path), reader=given, tokenizer=name
    )


def _of_run(target: str, run: Run, given: Reader | None, name: str) -> _Source:
    reader = given or _own(run)
    if reader is None:
        raise UsageError(f"{target}: the run keeps no tokenizer. Name the one of its ids with --tokenizer.")
    return _Source(
        target=target,
        trajectories=_with_those_alone(run),
        count=trajectory_count(run),
        reader=reader,
        tokenizer=name or "of the run",
        with_text=run.manifest.keeps_text,
    )


def _with_those_alone(run: Run) -> Iterator[Trajectory]:
    """All trajectories; of those of one call, which have no history, the ids are not read."""
    told = 0
    for trajectory in trajectories_of(run):
        told += 1
        yield trajectory
    for _ in range(trajectory_count(run) - told):
        yield Trajectory(trajectory_id="")


def _own(run: Run) -> Reader | None:
    other = run.reading_info(TRAINER).engine.tokenizer_hash if TRAINER in run.reading_names() else ""
    sampling, scoring = readers(run, (run, other))
    return sampling or scoring


def _report(found: History, targets: tuple[str, ...], tokenizer: str) -> HistoryReport:
    status = history_verdict(found).status
    return HistoryReport(
        status=status,
        sentence=_sentence(found, status),
        targets=targets,
        tokenizer=tokenizer,
        trajectories=found.trajectories,
        calls=found.calls,
        alone=found.alone,
        unchecked=found.unchecked,
        why_unchecked=found.why_unchecked,
        broken=found.broken,
        causes=found.causes,
        breaks=tuple(found.breaks),
    )


def _sentence(found: History, status: Status) -> str:
    amount = f"{found.trajectories:,} trajectories ({found.calls:,} calls)"
    if status is Status.PASS:
        return f"Pass: in all {amount} each prompt begins with the ids that were sampled before it."
    if status is Status.FAIL:
        return f"Fail: in {found.broken:,} of {amount} a later prompt does not hold what was sampled."
    if found.unchecked:
        return f"Unknown: the calls of {found.unchecked:,} trajectories are not known; {amount} are as sampled."
    return "Unknown: no trajectory has two calls, so there is no history to check."
