"""Runs of the fake engine, made once and copied for each test that damages one."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import onepolicy

NOISE = {"noisy": 0.01, "exact": 0.0}


def checked(path: Path, *, noise: float, seed: int = 0) -> Path:
    rollout = {"engine": "fake", "target": "m", "noise": noise, "batch_size": 4}
    trainer = {"engine": "fake", "target": "m", "batch_size": 4}
    protocol = onepolicy.SamplingProtocol(max_new_tokens=24, seed=seed)
    judgement = onepolicy.check(rollout=rollout, trainer=trainer, run=path, protocol=protocol)
    assert judgement.status is onepolicy.Status.PASS
    return path


@pytest.fixture(scope="session")
def finished_runs(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    return {name: checked(folder / name, noise=noise) for name, noise in NOISE.items()}


@pytest.fixture(scope="session")
def another_run(tmp_path_factory) -> Path:
    """The same engines and prompts with another sampling seed, so with other tokens."""
    return checked(tmp_path_factory.mktemp("runs") / "another", noise=0.01, seed=1)


@pytest.fixture
def run_copy(finished_runs, tmp_path) -> Callable[..., Path]:
    def copy(which: str = "noisy") -> Path:
        return shutil.copytree(finished_runs[which], tmp_path / which)

    return copy


@pytest.fixture(scope="session")
def rewrite() -> Callable[..., None]:
    """Change the rows of part files through pyarrow, as somebody who means to would: {rollout id: row} -> in place."""

    def change(folder: Path, edit: Callable[[dict[str, dict]], None]) -> None:
        parts = {path: pq.read_table(path) for path in sorted(folder.glob("part-*.parquet"))}
        before = {path: table.to_pylist() for path, table in parts.items()}
        edit({row["rollout_id"]: row for rows in before.values() for row in rows})
        for path, rows in before.items():
            table = pa.Table.from_pylist(rows, schema=parts[path].schema)
            if not table.equals(parts[path]):
                pq.write_table(table, path)

    return change
