"""Trajectories of several calls: of a run, or of a file that anybody may have written.

A row of a JSONL file is `{"id": "a", "calls": [{"prompt_ids": [1, 2], "completion_ids": [3]}, ...]}`, the calls in the
order in which they were made. `id` may be absent; further keys are not read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from onepolicy.errors import UsageError
from onepolicy.records.rollout import Rollout, Span
from onepolicy.records.run import Run
from onepolicy.tokens.trajectory import Call, Trajectory, trajectory_of
from onepolicy.workflow.rollout_files import check_ids, is_parquet, json_rows, name_of

_WANTED = 'A row is {"id": ..., "calls": [{"prompt_ids": [...], "completion_ids": [...]}, ...]}.'


def trajectories_of(run: Run, chosen: Callable[[str], bool] = lambda _: True) -> Iterator[Trajectory]:
    """The trajectories of a run that have several calls, as soon as their last rollout was read."""
    rollouts = dict(zip(run.rollout_ids(), run.trajectory_ids(), strict=True))
    several = {name for name in _of_several_calls(run, rollouts) if chosen(name)}
    if not several:
        return
    spans: dict[str, list[Span]] = {name: [] for name in several}
    for span in run.spans():
        if rollouts.get(span.rollout_id) in several:
            spans[rollouts[span.rollout_id]].append(span)
    missing = Counter(name for name in rollouts.values() if name in several)
    read: dict[str, list[Rollout]] = {}
    for rollout in run.rollouts():
        name = rollout.trajectory_id
        if name in several:
            read.setdefault(name, []).append(rollout)
            missing[name] -= 1
            if not missing[name]:
                yield trajectory_of(name, read.pop(name), spans.pop(name))


def trajectory_count(run: Run) -> int:
    """How many trajectories a run has, of one call or several."""
    return len(set(run.trajectory_ids()))


def trajectories_in(path: Path) -> Iterator[Trajectory]:
    """The rows of a JSONL file. Raises: UsageError that names the row and the field of what is malformed."""
    if is_parquet(path):
        raise UsageError(f"{path}: is Parquet; trajectories are read from JSONL or a run. {_WANTED}")
    for where, row in json_rows(path):
        calls = row.get("calls")
        if not isinstance(calls, list):
            found = "no calls" if calls is None else f"calls that are a {type(calls).__name__} and no list"
            raise UsageError(f"{where}: has {found}. {_WANTED}")
        read = tuple(_call(f"{where}: calls[{number}]", call) for number, call in enumerate(calls))
        yield Trajectory(trajectory_id=name_of(where, row), calls=read)


def _of_several_calls(run: Run, trajectory_of_rollout: dict[str, str]) -> set[str]:
    of_rollouts = Counter(trajectory_of_rollout.values())
    of_spans = Counter(trajectory_of_rollout.get(span.rollout_id) for span in run.spans())
    return {name for name in of_rollouts if of_rollouts[name] > 1 or of_spans[name] > 1}


def _call(where: str, call: Any) -> Call:
    if not isinstance(call, dict):
        raise UsageError(f"{where} is a {type(call).__name__} and no object. {_WANTED}")
    prompt, completion = (_ids(f"{where}.{field}", call.get(field)) for field in ("prompt_ids", "completion_ids"))
    return Call(prompt_ids=prompt, completion_ids=completion)


def _ids(where: str, ids: Any) -> Any:
    if ids is None:
        raise UsageError(f"{where} is absent. {_WANTED}")
    check_ids(where, ids)
    return np.array(ids, dtype=np.int32)
