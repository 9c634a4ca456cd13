"""A real vLLM on a CPU: as rollout side, as trainer side, killed, updated, and in both modes of its logprobs."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

pytestmark = pytest.mark.real

ONEPOLICY = [sys.executable, "-m", "onepolicy"]
FLOAT32 = "transformers:smollm2?dtype=float32"
BFLOAT16 = "transformers:smollm2?dtype=bfloat16"


def run(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [*ONEPOLICY, *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=600, check=False)


def judged(*arguments: object, cwd: Path) -> tuple[int, dict]:
    done = run(*arguments, "--json", cwd=cwd)
    assert done.stdout.startswith("{"), done.stderr
    return done.returncode, json.loads(done.stdout)


def verdict(judgement: dict, check: str) -> dict:
    return next(v for v in judgement["verdicts"] if v["check"] == check)


def parts(run_path: Path) -> dict[str, bytes]:
    return {str(path.relative_to(run_path)): path.read_bytes() for path in run_path.glob("**/part-*.parquet")}


def checked(url: str, folder: Path, *options: object) -> Path:
    """Prompts of the suite `standard`, sampled by vLLM and scored by Transformers in two precisions."""
    command = ["check", "--rollout", f"vllm:{url}", "--trainer", FLOAT32, "--also", BFLOAT16, "--suite", "standard"]
    status, judgement = judged(*command, "--max-new-tokens", 24, "--run", "run", *options, cwd=folder)
    assert status == 1, judgement["sentence"]
    # Judging again, as tests do, takes it away.
    (folder / "run" / "judgements" / "default" / "findings.json").rename(folder / "why.json")
    return folder


@pytest.fixture(scope="module")
def recorded(vllm_url, tmp_path_factory) -> Path:
    return checked(vllm_url, tmp_path_factory.mktemp("vllm-run"), "--budget", 40 * 24)


def agrees_as_bfloat16_does(folder: Path, *, prompts: int) -> None:
    """Fails under strict, where precision alone accounts for it, and passes under bf16, against both precisions."""
    status, judgement = judged("judge", "run", cwd=folder)
    assert status == 1
    assert judgement["counts"]["prompt_groups"] == prompts
    assert judgement["counts"]["tokens_compared"] == judgement["counts"]["tokens_to_compare"]
    assert 0.02 < judgement["metrics"]["mean_abs_d"] < 0.06
    assert verdict(judgement, "mean_kl")["quantity"] == "kl_hybrid"
    assert "recision alone accounts for it" in verdict(judgement, "mean_kl")["message"]
    assert verdict(judgement, "mean_ratio")["status"] == "pass"
    (other,) = [path.name for path in (folder / "run" / "readings").iterdir() if path.name.startswith("trainer-")]
    for trainer in ("trainer", other):
        status, loose = judged("judge", "run", "--trainer", trainer, "--limits", "bf16", cwd=folder)
        assert status == 0, loose["sentence"]
        assert 0.02 < loose["metrics"]["mean_abs_d"] < 0.06


def test_bfloat16_rollouts_fail_under_strict_and_pass_under_bf16(recorded):
    agrees_as_bfloat16_does(recorded, prompts=40)


def test_the_cause_is_precision_with_positive_evidence(recorded):
    found = json.loads((recorded / "why.json").read_text())
    assert found["sentence"].startswith("Cause: precision: bfloat16 on the rollout side, float32 on the trainer")
    (cause,) = [one for one in found["findings"] if one["outcome"] == "cause"]
    assert 0.67 < cause["residual"] < 1.5
    assert "the trainer read again in bfloat16 moves by" in cause["seen"]


@pytest.mark.full
def test_two_hundred_prompts_of_it_do_the_same(vllm_url, tmp_path):
    agrees_as_bfloat16_does(checked(vllm_url, tmp_path), prompts=200)


def test_its_decode_reading_agrees_with_its_own_prefill_reading(recorded, vllm_url):
    done = run("score", "run", "--engine", f"vllm:{vllm_url}", "--name", "prefill", cwd=recorded)
    assert done.returncode == 0, done.stderr
    status, judgement = judged("judge", "run", "--trainer", "prefill", "--limits", "bf16", cwd=recorded)
    assert status == 0, judgement["sentence"]
    assert verdict(judgement, "mean_kl")["value"] < 1e-4
    assert judgement["metrics"]["mean_abs_d"] < 0.01


def test_one_model_behind_two_servers_is_compared_without_transformers(vllm_url, tmp_path):
    status, judgement = judged(
        "check", "--rollout", "llamacpp:smollm2", "--trainer", f"vllm:{vllm_url}", "--budget", 1536,
        "--limits", "quantised", "--run", "run", cwd=tmp_path,
    )  # fmt: skip
    assert status in (0, 1), judgement["sentence"]
    assert 0.03 < judgement["metrics"]["mean_abs_d"] < 0.12


@pytest.mark.full
def test_a_server_that_is_killed_and_started_again_is_gone_on_with(start_vllm, end_server, smollm2_folder, tmp_path):
    with start_vllm(smollm2_folder, tmp_path / "first.log") as (url, server):
        engine = f"vllm:{url}?retries=1&concurrency=4"
        command = ["record", "--engine", engine, "--suite", "standard", "--max-new-tokens", "16", "--run", "run"]
        recording = subprocess.Popen(
            [*ONEPOLICY, *command], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        until(lambda: len(parts(tmp_path / "run")) >= 2)
        end_server(server, signal.SIGKILL)
        _, complaint = recording.communicate(timeout=120)
    assert recording.returncode == 2, complaint
    assert url in complaint
    assert "--resume" in complaint
    assert "Traceback" not in complaint
    before = parts(tmp_path / "run")
    assert before
    with start_vllm(smollm2_folder, tmp_path / "second.log", port=httpx.URL(url).port):
        done = run(*command, "--resume", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    after = parts(tmp_path / "run")
    assert before.items() < after.items()
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["status"] == "complete"


def until(happens, *, within: float = 180.0) -> None:
    deadline = time.monotonic() + within
    while not happens():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_two_weight_versions_inside_one_run_are_seen_and_kept_apart(vllm_url, tmp_path):
    engine = f"vllm:{vllm_url}?concurrency=2"
    command = ["record", "--engine", engine, "--suite", "standard", "--max-new-tokens", "8", "--run", "run"]
    recording = subprocess.Popen([*ONEPOLICY, *command], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    try:
        until(lambda: parts(tmp_path / "run"))
        httpx.post(f"{vllm_url}/update_weight_version", json={"new_version": "step-1"}, trust_env=False)
        _, complaint = recording.communicate(timeout=300)
        assert recording.returncode == 0, complaint
        assert run("score", "run", "--engine", engine, cwd=tmp_path).returncode == 0
    finally:
        httpx.post(f"{vllm_url}/update_weight_version", json={"new_version": "default"}, trust_env=False)
    status, judgement = judged("judge", "run", cwd=tmp_path)
    assert status == 3, judgement["sentence"]
    message = verdict(judgement, "one_weight_version")["message"]
    assert "default" in message
    assert "step-1" in message
    assert verdict(judgement, "mean_kl")["value"] is None
