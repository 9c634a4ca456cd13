"""The protocol of the newest run that passed, to go back to."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from onepolicy.errors import OnePolicyError, UsageError
from onepolicy.records.protocol import SamplingProtocol
from onepolicy.records.run import Run
from onepolicy.records.verdict import Status
from onepolicy.sampling.diff import differences
from onepolicy.workflow.behave_kept import BEHAVIOUR, kept_behaviour
from onepolicy.workflow.judge import JudgeRequest, stored_judgement
from onepolicy.workflow.judged_content import is_of_content
from onepolicy.workflow.measure import MONITOR

GREEN = "green"
"""`green:FOLDER`, where a protocol is asked for"""
_FILE = "sampling_config.yaml"
_LEVELS = 2
"""folders below the one that is named: RUN, RUN/b and self-check/step-500 are found, a whole disk is not searched"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Green:
    """A run that passed."""

    path: Path
    """the run; of two that were compared with `behave`, that of B, which serves"""
    protocol: SamplingProtocol
    """to go back to; without what `behave` itself chose for the comparison"""
    put_back: frozenset[str] = frozenset()
    """fields that have their default in place of what `behave` chose"""


def green_run(folder: Path) -> Green:
    """The newest run in a folder whose `check` passed, or the newest comparison of `behave` that did: its B.

    Newest by when the last of its rollouts was written, as the file's time says; a copy that does not keep the times
    counts from when it was made. Only a judgement that is of what the run holds now counts.
    Raises: UsageError if there is none; it says what is there instead.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder}: there is no such folder. Give the one with your runs, such as {GREEN}:runs.")
    others: dict[str, list[Path]] = {}
    for path in sorted(_places(folder, _LEVELS), key=_written, reverse=True):
        found = _found_at(path)
        if isinstance(found, Green):
            return found
        others.setdefault(found, []).append(path)
    raise UsageError(
        f"{folder}: no green run. {_said_of(others)} Green is what `onepolicy check` or `onepolicy behave` passes."
    )


def way_back(folder: Path, now: SamplingProtocol) -> str | None:
    """One line on how to go back to the last green protocol in a folder; None if nothing there is green.

    now: the protocol of what failed.
    """
    try:
        green = green_run(folder)
    except OnePolicyError:
        return None
    found = differences(green.protocol, now)
    if not any(one.matters and one.field not in green.put_back for one in found):
        return f"The last green run, {green.path}, was sampled under the same protocol."
    command = f"onepolicy protocol write yaml {shlex.quote(f'{GREEN}:{folder}')} --output {_FILE}"
    return f"The last green protocol is that of {green.path}. To write it back: {command}"


# -- where to look ----------------------------------------------------------------------------------------------


def _places(folder: Path, levels: int) -> Iterator[Path]:
    """The runs and comparisons in a folder; nothing in a run, and of a comparison neither side, is one of its own."""
    if not os.access(folder, os.R_OK | os.X_OK):
        return
    if (folder / BEHAVIOUR).exists() or (folder / "manifest.json").exists():
        yield folder
    elif levels > 0:
        for path in sorted(folder.iterdir()):
            if path.is_dir() and not path.is_symlink() and not path.name.startswith("."):
                yield from _places(path, levels - 1)


def _written(path: Path) -> tuple[int, str]:
    """When the last rollout was written, in nanoseconds; 0 if none is there. Judging again later changes nothing."""
    run = path / "b" if (path / BEHAVIOUR).exists() else path
    times = [part.stat().st_mtime_ns for part in (run / "rollouts").glob("part-*.parquet")]
    return max(times, default=0), str(path)


# -- is it green? -----------------------------------------------------------------------------------------------

_STATUSES = {Status.FAIL: "failed", Status.UNKNOWN: "is unknown"}
UNJUDGED = "is not judged"
UNFINISHED = "is not recorded to its end"
UNSAID = "does not say how it was sampled"
MIXED = "was sampled under several protocols"
FOREIGN = "has a judgement of something else"
UNREADABLE = "cannot be read"


def _found_at(path: Path) -> Green | str:
    look: Callable[[Path], Green | str] = _of_comparison if (path / BEHAVIOUR).exists() else _of_run
    try:
        return look(path)
    except OnePolicyError:
        return UNREADABLE


def _of_comparison(path: Path) -> Green | str:
    kept = kept_behaviour(path)
    if kept.found.status is not Status.PASS:
        return _STATUSES[kept.found.status]
    found = _sampled(Run.open(path / "b"))
    if not kept.is_of(path):
        return FOREIGN
    return _serving(found, Run.open(path / "a").manifest.protocol) if isinstance(found, Green) else found


def _serving(green: Green, a: SamplingProtocol) -> Green:
    """Without B's seed, if it is only the one after A's, and without the number of samples to compare."""
    usual = SamplingProtocol()
    chosen = {"samples_per_prompt", "seed"} if green.protocol.seed == a.seed + 1 else {"samples_per_prompt"}
    protocol = green.protocol.model_copy(update={name: getattr(usual, name) for name in chosen})
    return replace(green, protocol=protocol, put_back=frozenset(chosen))


def _of_run(path: Path) -> Green | str:
    run, name = Run.open(path), JudgeRequest().name
    if not (path / "judgements" / name / "verdicts.json").exists():
        return UNJUDGED
    judgement = stored_judgement(path, name)
    if judgement.status is not Status.PASS:
        return _STATUSES[judgement.status]
    found = _sampled(run)
    if isinstance(found, Green) and not is_of_content(judgement, run):
        return FOREIGN
    return found


def _sampled(run: Run) -> Green | str:
    """The run's protocol, if all of its rollouts were sampled under it."""
    manifest = run.manifest
    if manifest.kind == "fixed" or manifest.imported is not None or manifest.suite == MONITOR:
        return UNSAID
    if manifest.status != "complete":
        return UNFINISHED
    if {span.protocol_hash for span in run.spans()} != {manifest.protocol.hash}:
        return MIXED
    return Green(path=run.path, protocol=manifest.protocol)


def _said_of(others: dict[str, list[Path]]) -> str:
    """How many there are of each kind, and the newest of them."""
    if not others:
        return "There is no run and no comparison in it."
    total = sum(map(len, others.values()))
    parts = [f"{why}: {len(paths)} ({'' if len(paths) == 1 else 'newest '}{paths[0]})" for why, paths in others.items()]
    return f"{total} run{'' if total == 1 else 's'} or comparison{'' if total == 1 else 's'} there: {'; '.join(parts)}."
