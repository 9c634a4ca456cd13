"""A real GRPOTrainer, monitored, whose rollouts come from a real vLLM: both on the CPU, in processes of their own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from onepolicy.dumps.file import DumpFile
from onepolicy.integrations.columns.dump import COLUMNS

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PEERS = ROOT / ".peers"
FAST: dict[str, Any] = {"learning_rate": 4e-5}
"""at which weights that do not arrive leave the noise floor within a few steps"""
SLOW: dict[str, Any] = {"learning_rate": 2e-5}
WIDE: dict[str, Any] = {"limits": {"mean_kl": 0.05, "worst_rollout_kl": 0.5}}
"""so that what ends the training is that stale weights are known for what they are, and not the limit"""
TWO_RANKS = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
TRL_MEAN, TRL_MAX = "sampling/sampling_logp_difference/mean", "sampling/sampling_logp_difference/max"


@dataclass(frozen=True)
class Job:
    """A training that has ended."""

    folder: Path
    status: int
    said: str

    @property
    def steps(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "monitor" / "steps.jsonl").read_text().splitlines()]

    @property
    def logs(self) -> list[dict[str, Any]]:
        """What TRL logged, of each step."""
        return [line for line in json.loads((self.folder / "log.json").read_text()) if "loss" in line]

    @property
    def alarms(self) -> list[tuple[int, str, str]]:
        return [(alarm["step"], alarm["kind"], alarm["message"]) for step in self.steps for alarm in step["alarms"]]

    @property
    def state(self) -> dict[str, Any]:
        return json.loads((self.folder / "monitor" / "monitor.json").read_text())


def in_a_process(
    script: str, *arguments: object, within: float, under: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    assert (PEERS / "trl").is_dir(), "there is no TRL in .peers; build it with: make .peers/.ready"
    environment = {**os.environ, "PYTHONPATH": str(PEERS), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-W", "ignore", *under, str(HERE / script), *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=within, check=False)


def trained(model: Path, url: str, folder: Path, *, within: float = 600, **settings: Any) -> Job:
    done = in_a_process("grpo_job.py", model, url, folder, json.dumps(settings), within=within)
    assert (folder / "log.json").exists(), done.stderr[-3000:]
    return Job(folder=folder, status=done.returncode, said=done.stderr)


def agrees_with_trl(job: Job) -> None:
    """Our numbers of each step against the ones that TRL logs for it, which are means and maxima of float32."""
    theirs = {line["step"]: line for line in job.logs}
    both = [step for step in job.steps if step["step"] in theirs]
    assert len(both) >= 4
    for step in both:
        assert step["metrics"]["mean_abs_d"] == pytest.approx(theirs[step["step"]][TRL_MEAN], rel=1e-5)
        assert step["metrics"]["max_abs_d"] == pytest.approx(theirs[step["step"]][TRL_MAX], rel=1e-6)


def names_the_weights(job: Job, *, within: int) -> None:
    """An alarm says whose fault it is, though TRL claims of each step that it has sent the weights."""
    found = [step for step, kind, message in job.alarms if kind == "stale" and "weights do not reach" in message]
    assert found, job.alarms
    assert found[0] <= within
    assert job.state["status"] == "fail"
    assert {cell["lag"] for step in job.steps for cell in step["by_lag"]} == {0}


def stayed_quiet(job: Job, *, steps: int, status: str = "pass") -> None:
    assert job.status == 0, job.said[-2000:]
    assert job.alarms == []
    assert (job.state["status"], job.state["steps"]) == (status, steps)
    assert {cell["lag"] for step in job.steps for cell in step["by_lag"]} == {0}


@pytest.fixture
def own_server(start_vllm, smollm2_folder, tmp_path):
    """A server whose weights a test may change, and the folder that they are in."""
    folder = tmp_path / "model"
    shutil.copytree(smollm2_folder, folder)
    with start_vllm(folder, tmp_path / "vllm.log") as (url, _):
        yield folder, url


@pytest.mark.real
@pytest.mark.full
def test_a_masked_rollout_moves_no_weight_of_a_real_trainer(smollm2_folder, tmp_path):
    done = in_a_process("grpo_masking.py", smollm2_folder, tmp_path, within=300)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads((tmp_path / "found.json").read_text())
    assert [(line["before_loss"], line["beta"]) for line in found] == [
        (True, 0.0),
        (True, 0.5),
        (False, 0.0),
        (False, 0.5),
    ]
    for line in found:
        assert line["change"] > 0.01
        assert line["other tokens"] == line.get("by hand", 0.0) == 0.0
        assert line["no mask"] > 0.1


@pytest.mark.real
@pytest.mark.parametrize(("scores", "limits", "status"), [("before_loss", "bf16", 0), ("in_loss", "bitwise", 1)])
def test_two_ranks_are_one_step_and_end_together(smollm2_folder, tmp_path, scores, limits, status):
    arguments = ("grpo_ranks.py", smollm2_folder, tmp_path, scores, limits)
    done = in_a_process(*arguments, within=300, under=TWO_RANKS)
    assert done.returncode == status, done.stderr[-3000:]
    job = Job(folder=tmp_path, status=status, said=done.stderr)
    assert ("onepolicy: training halted" in done.stderr) == bool(status)
    assert [(step["rollouts"], step["prompts"]) for step in job.steps] == [(24, 3)] * 4
    for step in job.steps:
        files = sorted((tmp_path / "dump").glob(f"step-{step['step']:06d}-rank-*.parquet"))
        rows = [row for path in files for row in pq.read_table(path).to_pylist()]
        p, q = (np.concatenate([row[f"{side}_logprobs"] for row in rows]) for side in ("rollout", "trainer"))
        assert len(files) == 2
        assert len({row["rollout_id"] for row in rows}) == 24
        assert np.abs(q - p).mean() == pytest.approx(step["metrics"]["mean_abs_d"], rel=1e-6)
    if scores == "before_loss":  # all rollouts are of one length, so that the mean of the ranks' means is the mean
        agrees_with_trl(job)


@pytest.mark.real
def test_numbers_are_trls_own_and_weights_that_never_arrive_end_the_training(vllm_url, smollm2_folder, tmp_path):
    job = trained(smollm2_folder, vllm_url, tmp_path, steps=16, sync="broken", policy="halt", **FAST, **WIDE)
    agrees_with_trl(job)
    names_the_weights(job, within=16)
    assert job.status == 1, job.said[-2000:]
    assert f"evidence: {tmp_path / 'monitor'}" in job.said
    assert job.state["evidence_rollouts"] > 0


@pytest.mark.full
def test_weights_that_arrive_leave_the_monitor_quiet_and_the_server_says_which_they_are(own_server, tmp_path):
    folder, url = own_server
    job = trained(folder, url, tmp_path / "job", steps=5, sync="reload", asks_server=True, dump=True, **FAST)
    stayed_quiet(job, steps=5, status="unknown")  # five steps bound no mean
    agrees_with_trl(job)
    dumped = sorted((tmp_path / "job" / "dump").iterdir())
    assert len(dumped) == 5
    for step, path in zip(job.steps, dumped, strict=True):
        is_the_same(step, path)


def is_the_same(step: dict[str, Any], path: Path) -> None:
    """The file of a step against what the monitor says of it, and read as anybody would import it."""
    rows = pq.read_table(path).to_pylist()
    p, q = (np.concatenate([row[f"{side}_logprobs"] for row in rows]) for side in ("rollout", "trainer"))
    assert np.abs(q - p).mean() == pytest.approx(step["metrics"]["mean_abs_d"], rel=1e-6)
    assert {(row["step"], row["weight_version"], row["trainer_version"]) for row in rows} == {
        (step["step"], str(step["step"] - 1), str(step["step"] - 1))
    }
    file = DumpFile(path)
    assert COLUMNS.recognises(file)
    assert COLUMNS.blocks is not None
    blocks = list(COLUMNS.blocks(file))
    assert [len(block.rollouts.rollout_ids) for block in blocks] == [len(rows)]
    assert not any(block.refused for block in blocks)


@pytest.mark.full
def test_without_trls_correction_the_loss_itself_is_what_is_compared(vllm_url, smollm2_folder, tmp_path):
    job = trained(smollm2_folder, vllm_url, tmp_path, steps=2, sync="none", dump=True, micro_batches=2, **FAST)
    assert job.status == 0, job.said[-2000:]
    assert not any(TRL_MEAN in line for line in job.logs)
    for step, path in zip(job.steps, sorted((tmp_path / "dump").iterdir()), strict=True):
        rows = pq.read_table(path).to_pylist()
        p, q = (np.concatenate([row[f"{side}_logprobs"] for row in rows]) for side in ("rollout", "trainer"))
        assert np.abs(q - p).mean() == pytest.approx(step["metrics"]["mean_abs_d"], rel=1e-6)
        assert [cell["lag"] for cell in step["by_lag"]] == [-1]
        assert {row["weight_version"] for row in rows} == {None}
    assert 0.02 < job.steps[0]["metrics"]["mean_abs_d"] < 0.12


@pytest.mark.full
def test_stale_weights_are_named_within_20_steps_under_the_limits_of_bf16(vllm_url, smollm2_folder, tmp_path):
    job = trained(smollm2_folder, vllm_url, tmp_path, within=1800, steps=20, sync="broken", **SLOW)
    agrees_with_trl(job)
    names_the_weights(job, within=20)
    assert "limit" in {kind for _, kind, _ in job.alarms}


@pytest.mark.full
def test_a_hundred_steps_with_weights_that_arrive_stay_quiet(own_server, tmp_path):
    folder, url = own_server
    settings = {"steps": 100, "sync": "reload", "policy": "halt", "asks_server": True} | SLOW
    job = trained(folder, url, tmp_path / "job", within=3600, **settings)
    agrees_with_trl(job)
    stayed_quiet(job, steps=100)
