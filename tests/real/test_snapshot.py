"""`onepolicy snapshot` and `onepolicy audit` on a real trainer engine and a real server."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.real

FLOAT32 = "transformers:smollm2?dtype=float32"
BFLOAT16 = "transformers:smollm2?dtype=bfloat16"


def run(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "onepolicy", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300, check=False)


def answered(*arguments: object, cwd: Path) -> tuple[int, dict]:
    done = run(*arguments, "--json", cwd=cwd)
    assert done.stdout.startswith("{"), done.stderr
    return done.returncode, json.loads(done.stdout)


def verdict(found: dict, check: str) -> dict:
    return next(v for v in found["verdicts"] if v["check"] == check)


@pytest.fixture(scope="module")
def snapshots(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("snapshots")
    done = run("snapshot", "take", "--engine", FLOAT32, "--budget", 400, "--output", "trainer", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_the_checkpoint_that_a_server_serves_agrees_and_what_differs_is_named(snapshots, vllm_url):
    status, found = answered(
        "snapshot", "compare", "trainer", "--engine", f"vllm:{vllm_url}", "--limits", "bf16", cwd=snapshots
    )
    assert status == 0, found["sentence"]
    assert 0.01 < found["metrics"]["mean_abs_d"] < 0.08
    assert "engine transformers -> vllm" in verdict(found, "versions")["message"]
    assert "dtype float32 -> bfloat16" in verdict(found, "configuration")["message"]
    assert verdict(found, "tokenizer")["message"] == "vocabulary 49152 -> not said.", "its hash is the same"


def test_the_same_weights_in_another_precision_fail_and_the_precision_is_named_first(snapshots):
    status, found = answered("snapshot", "compare", "trainer", "--engine", BFLOAT16, cwd=snapshots)
    assert status == 1, found["sentence"]
    assert found["sentence"].startswith("Fail: look first at configuration (dtype float32 -> bfloat16")
    assert found["sentence"].index("configuration") < found["sentence"].index("mean k3")
    assert verdict(found, "tokenizer")["status"] == "pass"


def test_a_run_of_a_real_server_is_audited_without_a_finding_and_a_stop_string_that_was_not_heeded_is_one(
    vllm_url, tmp_path
):
    sampling = ("--max-new-tokens", 160, "--samples-per-prompt", 2, "--budget", 24 * 160)
    done = run("record", "--engine", f"vllm:{vllm_url}", *sampling, "--run", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    status, found = answered("audit", "run", cwd=tmp_path)
    assert status == 0, found["sentence"]
    decided = {v["check"]: v["status"] for v in found["verdicts"] if v["required"]}
    assert set(decided.values()) == {"pass"}
    assert {"one_protocol", "finish_reason", "length_limit", "duplicate_samples", "samples_per_prompt"} <= set(decided)
    status, found = answered("audit", "run", "--stop", " the", cwd=tmp_path)
    assert status == 1, found["sentence"]
    assert verdict(found, "stop_strings")["value"] > 5
    status, found = answered("audit", "run", "--max-new-tokens", 100, cwd=tmp_path)
    assert (status, verdict(found, "length_limit")["status"]) == (1, "fail")
