"""The statistics that a reading keeps beside its logprobs, of some rollouts."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np
import pyarrow as pa

from onepolicy.errors import RunError
from onepolicy.records.parquet import READING_SCHEMA, STATISTIC_PREFIX
from onepolicy.records.run import Run
from onepolicy.records.stored import open_parquet, read_row_group
from onepolicy.records.tokens import Float32


def statistics_of(run: Run, reading: str, rollout_ids: Collection[str]) -> dict[str, dict[str, Float32]]:
    """Rollout id -> statistic -> [T]; nothing for a rollout that has none. Raises: RunError for a damaged file."""
    wanted, found = set(rollout_ids), dict[str, dict[str, Float32]]()
    for path in run.reading_parts(reading):
        with open_parquet(path, READING_SCHEMA) as file:
            names = [name for name in file.schema_arrow.names if name.startswith(STATISTIC_PREFIX)]
            for group in range(file.num_row_groups if names else 0):
                ids = read_row_group(path, file, group, ["rollout_id"])["rollout_id"].to_pylist()
                if wanted.isdisjoint(ids):
                    continue
                table = read_row_group(path, file, group, ["logprobs", *names])
                for row, rollout_id in enumerate(ids):
                    if rollout_id in wanted:
                        found[rollout_id] = _row(path, table, names, row, rollout_id)
    return found


def _row(path: Path, table: pa.Table, names: list[str], row: int, rollout_id: str) -> dict[str, Float32]:
    tokens = len(table["logprobs"][row].values)
    found: dict[str, Float32] = {}
    for name in names:
        values = table[name][row].values
        if values is None or len(values) != tokens or values.null_count:
            raise RunError(
                f"{path}: the statistic {name.removeprefix(STATISTIC_PREFIX)!r} of rollout {rollout_id} has not one "
                f"number for each of its {tokens} tokens. The file is damaged; score the run again."
            )
        found[name.removeprefix(STATISTIC_PREFIX)] = np.asarray(values, dtype=np.float32)
    return found
