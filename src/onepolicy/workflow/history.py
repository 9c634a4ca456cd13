"""A folder of runs -> its runs over time, and the newest one held against the last green one before it.

Green is a run whose check passed, and whose judgement is of what the run holds now.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import parse_qsl

from onepolicy.dumps.source import is_url
from onepolicy.errors import OnePolicyError, RunError, UsageError
from onepolicy.records.past import Against, History, PastRun
from onepolicy.records.run import Run
from onepolicy.records.verdict import Status
from onepolicy.workflow.against import against
from onepolicy.workflow.against_changes import changes_between, made_with
from onepolicy.workflow.behave_kept import BEHAVIOUR
from onepolicy.workflow.history_lines import LINES, read_lines
from onepolicy.workflow.history_remote import Mirror
from onepolicy.workflow.judge import JudgeRequest, stored_judgement
from onepolicy.workflow.judged_content import is_of_content
from onepolicy.workflow.measure import MONITOR
from onepolicy.workflow.progress import Progress, Silent
from onepolicy.workflow.record import ROLLOUT
from onepolicy.workflow.score import TRAINER

_LEVELS = 2
"""folders below the one that is named; a whole disk is not searched"""
_NAMES_A_MODEL = ("model", "adapter")
"""options of an engine by which it is another one; all others are its configuration"""
_DATED = re.compile(r"(\d{8}-\d{6})(-|$)")


def history(location: str, *, progress: Progress | None = None) -> History:
    """The runs in a folder, or at a URL that fsspec opens, the oldest first.

    The newest run of each pair of engines and suite decides; a run that cannot be read is a row that says why.
    Raises: UsageError if there is no run; DumpError if a URL cannot be read.
    """
    shown = progress or Silent()
    if not is_url(location):
        return _history(location, Path(location), whole=lambda _: None)
    with TemporaryDirectory(prefix="onepolicy-history-") as folder:
        mirror = Mirror(location, Path(folder), progress=shown)
        mirror.take_small_files()
        found = _history(location, Path(folder), whole=mirror.take_run)
        return _at(found, folder, location.rstrip("/"))


def rows_in(folder: Path) -> list[PastRun]:
    """The runs in a folder and the probes of a watch of which no run is left, the oldest first.

    What is of no known time comes after all others: it may be the newest. What compares no pair has no row.
    """
    runs = [past_run(path) for path in _places(folder, _LEVELS) if not _compares_no_pair(path)]
    kept = {row.run for row in runs}
    probes = [_where_it_lies(row, file.parent) for file in _lines_in(folder) for row in read_lines(file)]
    probes = [row for row in probes if not (row.run and row.run in kept)]
    rows = sorted([*runs, *probes], key=lambda row: (row.time or datetime.max.replace(tzinfo=UTC), row.run))
    return _with_changes(rows)


def past_run(path: Path) -> PastRun:
    """A run as a row; one that is damaged or not judged is unknown and says so."""
    try:
        return _readable(path)
    except OnePolicyError as error:
        return PastRun(time=time_of(path), run=str(path), status=Status.UNKNOWN, sentence=f"Unknown: {error}")


def pair_of(kind: str, suite: str, engines: str) -> str:
    """What rows are compared by; the engines as `engines_of` names them, at the end."""
    return f"{kind}, {suite}, {engines}"


def engines_of(rollout: str, trainer: str) -> str:
    """Two engine specs without the options that configure them: such a change is one of the same pair, and is shown."""
    return f"{_engine(rollout)}, {_engine(trainer)}"


def _engine(spec: str) -> str:
    named, _, query = spec.partition("?")
    engine, _, target = named.partition(":")
    target = target.rstrip("/") if "://" in target else posixpath.normpath(target)
    return " ".join([f"{engine}:{target}", *(value for name, value in parse_qsl(query) if name in _NAMES_A_MODEL)])


def last_green(rows: Sequence[PastRun], row: PastRun, *, whole: Callable[[Path], None] = lambda _: None) -> PastRun:
    """The newest green run of the same pair before this one. whole: brings all of a run here before it is looked into.

    Raises: UsageError if there is none; it says what is there instead.
    """
    before = [one for one in rows if one.pair == row.pair and one.run != row.run and _is_before(one, row)]
    passed = [one for one in before if one.status is Status.PASS and one.run]
    for one in reversed(passed):
        whole(Path(one.run))
        if is_green(Path(one.run)):
            return one
    raise UsageError(f"there is no green run before {row.run}: {_instead(len(before), len(passed))}.")


def _instead(before: int, passed: int) -> str:
    if not before:
        return "there is no earlier run of the same engines and suite"
    if not passed:
        return f"none of the {before} earlier ones of the same engines and suite that are kept passed"
    return f"{passed} of {before} earlier ones say pass, and do not hold what was judged"


def against_last_green(
    rows: Sequence[PastRun], row: PastRun, *, whole: Callable[[Path], None] = lambda _: None
) -> Against:
    """A judged run held against the last green one before it. Raises: UsageError, RunError."""
    if not row.is_readable or not row.run:
        raise UsageError(f"{row.run or 'the newest probe'}: has no judgement of a run that could be held against one.")
    green = last_green(rows, row, whole=whole)
    whole(Path(row.run))
    return against(Path(row.run), green)


def is_green(path: Path) -> bool:
    """Whether the run's check passed, and its judgement is of what the run holds now, worked out anew."""
    try:
        run, judgement = Run.open(path), stored_judgement(path, JudgeRequest().name)
        passed = judgement.status is Status.PASS and run.manifest.status == "complete"
        return passed and is_of_content(judgement, run)
    except OnePolicyError:
        return False


def dated_path(folder: Path, stem: str, now: datetime) -> Path:
    """A run's folder that does not exist yet, named by the time, from which `time_of` reads it."""
    name = f"{now.astimezone(UTC):%Y%m%d-%H%M%S}-{stem}"
    path, number = folder / name, 1
    while path.exists():
        number += 1
        path = folder / f"{name}-{number}"
    return path


def time_of(path: Path) -> datetime | None:
    """When a run began: as its name says, else when the last of its rollouts was written; None if neither is there.

    A copy keeps its name and often not the times of its files.
    """
    named = _DATED.match(path.name)
    if named:
        try:
            return datetime.strptime(named[1], "%Y%m%d-%H%M%S").replace(tzinfo=UTC)
        except ValueError:
            pass  # digits that are no date
    try:
        parts = [*(path / "rollouts").glob("part-*.parquet")] or [*path.glob("manifest.json")]
        newest = max((part.stat().st_mtime for part in parts), default=None)
    except PermissionError:
        return None
    return None if newest is None else datetime.fromtimestamp(newest, UTC)


# -- rows -------------------------------------------------------------------------------------------------------


def _places(folder: Path, levels: int) -> Iterator[Path]:
    """The runs, those without a manifest too: a part of one that is there says that it was one."""
    try:
        is_run = any((folder / part).exists() for part in ("manifest.json", "rollouts", "readings", "judgements"))
        inside = [] if is_run or not levels or (folder / BEHAVIOUR).exists() else sorted(folder.iterdir())
        inside = [path for path in inside if path.is_dir() and not path.is_symlink() and not path.name.startswith(".")]
    except PermissionError:
        is_run, inside = True, []  # it may be one, and its row says why it cannot be read
    if is_run:
        yield folder
    for path in inside:
        yield from _places(path, levels - 1)


def _compares_no_pair(path: Path) -> bool:
    """Whether it is a monitor's evidence or a whole run of one engine, as of `legs` and `calibrate`, and not judged."""
    try:
        run = Run.open(path)
    except OnePolicyError:
        return False
    if _judged(path):
        return False
    readings = set(run.reading_names())
    of_one = run.manifest.status == "complete" and TRAINER not in readings and bool(readings - {ROLLOUT})
    return of_one or run.manifest.suite == MONITOR


def _judged(path: Path) -> bool:
    return (path / "judgements" / JudgeRequest().name / "verdicts.json").exists()


def _lines_in(folder: Path) -> list[Path]:
    return sorted(file for level in range(_LEVELS + 1) for file in folder.glob("*/" * level + LINES))


def _where_it_lies(row: PastRun, folder: Path) -> PastRun:
    """A line's row with its run beside the line, where a watch puts it, wherever it was when the line was written."""
    if not row.run:
        return row
    path = folder / Path(row.run).name
    if path.parent == folder and path.name != ".." and path.is_dir():
        return row.model_copy(update={"run": str(path)})
    if row.status is not Status.PASS:
        return row.model_copy(update={"run": ""})
    why = f"Unknown: a line of {folder / LINES} says pass, and its run {row.run} is not there."
    return row.model_copy(update={"run": "", "status": Status.UNKNOWN, "sentence": why})


def _readable(path: Path) -> PastRun:
    run, name = Run.open(path), JudgeRequest().name
    if not _judged(path):
        raise RunError(f"is not judged. Judge it with: onepolicy judge {path}")
    judgement = stored_judgement(path, name)
    kl = next((verdict for verdict in judgement.verdicts if verdict.check == "mean_kl"), None)
    infos = [run.reading_info(side) for side in (judgement.rollout_reading, judgement.trainer_reading)]
    manifest = run.manifest
    return PastRun(
        time=time_of(path),
        run=str(path),
        pair=pair_of(manifest.kind, manifest.suite, engines_of(*(info.request.engine for info in infos))),
        engines=" / ".join(f"{info.engine.name} {info.engine.version}".strip() for info in infos),
        status=judgement.status,
        sentence=judgement.sentence,
        kl=None if kl is None else kl.value,
        kl_low=None if kl is None else kl.low,
        kl_high=None if kl is None else kl.high,
        kl_limit=None if kl is None else kl.limit,
        numbers=judgement.numbers(),
        made=made_with(run, judgement),
    )


def _with_changes(rows: Sequence[PastRun]) -> list[PastRun]:
    """Each with what changed since the one before of its pair."""
    last: dict[str, PastRun] = {}
    found = []
    for row in rows:
        before = last.get(row.pair) if row.is_readable else None
        changed = () if before is None else tuple(changes_between(before.made, row.made))
        found.append(row.model_copy(update={"changed": changed}))
        if row.is_readable:
            last[row.pair] = row
    return found


def _is_before(one: PastRun, row: PastRun) -> bool:
    return one.time is not None and row.time is not None and (one.time, one.run) < (row.time, row.run)


# -- the answer -------------------------------------------------------------------------------------------------


def _history(location: str, folder: Path, *, whole: Callable[[Path], None]) -> History:
    if not folder.is_dir():
        raise UsageError(f"{location}: there is no such folder. Give the one with your runs, such as runs.")
    rows = rows_in(folder)
    if not rows:
        raise UsageError(f"{location}: holds no run. `onepolicy gate` and `onepolicy check` keep theirs under runs/.")
    deciding = [_verified(row, whole) for row in _deciding(rows)]
    verified = {row.run: row for row in deciding if row.run}
    rows = [verified.get(row.run, row) for row in rows]
    status = _worst(deciding)
    found = History(location=location, rows=tuple(rows), status=status, sentence=_sentence(deciding, status))
    try:
        held = against_last_green(rows, rows[-1], whole=whole)
    except OnePolicyError as error:
        return found.model_copy(update={"why_not_against": str(error)})
    return found.model_copy(update={"against": held})


def _deciding(rows: Sequence[PastRun]) -> list[PastRun]:
    """The newest of each pair, and what does not say of which pair it is: it may be the newest of any that is older."""
    newest = {row.pair: i for i, row in enumerate(rows) if row.pair}
    after = min(newest.values(), default=-1)
    of_no_pair = [i for i, row in enumerate(rows) if not row.pair and i > after]
    return [rows[i] for i in sorted([*newest.values(), *of_no_pair])]


def _verified(row: PastRun, whole: Callable[[Path], None]) -> PastRun:
    """The row, unknown if it says pass and its run does not hold what was judged."""
    if row.status is not Status.PASS or not row.run:
        return row
    whole(Path(row.run))
    if is_green(Path(row.run)):
        return row
    why = "Unknown: its judgement says pass, and is not of what the run holds now."
    return row.model_copy(
        update={"status": Status.UNKNOWN, "sentence": f"{why} Judge again: onepolicy judge {row.run}"}
    )


def _worst(rows: Sequence[PastRun]) -> Status:
    statuses = {row.status for row in rows}
    return next(status for status in (Status.FAIL, Status.UNKNOWN, Status.PASS) if status in statuses)


def _sentence(deciding: Sequence[PastRun], status: Status) -> str:
    row = next(row for row in reversed(deciding) if row.status is status)
    others = f" ({len(deciding)} pairs of engines and suite in this folder)" if len(deciding) > 1 else ""
    return f"{row.sentence}{others}"


def _at(found: History, folder: str, location: str) -> History:
    """The same with the places of where it came from."""
    text = found.model_dump_json().replace(folder, location)
    return History.model_validate_json(text)
