"""The main job on the packaged model, through real engines and the real command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.real

ROOT = Path(__file__).parents[2]
ONEPOLICY = [sys.executable, "-m", "onepolicy"]
FLOAT32 = "transformers:smollm2?dtype=float32"


def run(*arguments: str, cwd: Path, python: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [str(python), "-m", "onepolicy"] if python else ONEPOLICY
    return subprocess.run([*command, *arguments], cwd=cwd, capture_output=True, text=True, timeout=600, check=False)


def judgement(done: subprocess.CompletedProcess[str]) -> dict:
    assert done.stdout.startswith("{"), done.stderr
    return json.loads(done.stdout)


def verdict(judged: dict, check: str) -> dict:
    return next(v for v in judged["verdicts"] if v["check"] == check)


def test_a_model_agrees_with_itself_alone_and_in_left_padded_batches(tmp_path: Path) -> None:
    sides = ("--rollout", FLOAT32, "--trainer", FLOAT32)
    done = run("check", *sides, "--budget", "1536", "--run", "run", "--json", cwd=tmp_path)
    judged = judgement(done)
    assert done.returncode == 0, judged["sentence"]
    assert verdict(judged, "mean_kl")["value"] < 1e-9
    assert verdict(judged, "mean_kl")["quantity"] == "kl_hybrid"
    assert verdict(judged, "same_text")["status"] == "pass"

    alone, padded = f"{FLOAT32}&batch_size=1", f"{FLOAT32}&batch_size=8&padding_side=left"
    for name, engine in (("alone", alone), ("padded", padded)):
        assert run("score", "run", "--engine", engine, "--name", name, cwd=tmp_path).returncode == 0
    for trainer in ("alone", "padded"):
        assert run("judge", "run", "--trainer", trainer, cwd=tmp_path).returncode == 0
    done = run("judge", "run", "--rollout", "alone", "--trainer", "padded", "--json", cwd=tmp_path)
    assert done.returncode == 0
    assert judgement(done)["metrics"]["max_abs_d"] < 1e-4


@pytest.mark.full
def test_four_bit_rollouts_of_llama_cpp_fail_against_the_de_quantised_trainer(tmp_path: Path) -> None:
    sides = ("--rollout", "llamacpp:smollm2", "--trainer", FLOAT32)
    done = run("check", *sides, "--no-why", "--run", "run", "--json", cwd=tmp_path)
    judged = judgement(done)
    assert done.returncode == 1, judged["sentence"]
    assert 0.03 < judged["metrics"]["mean_abs_d"] < 0.12
    assert "The smallest limit that this check would pass is" in verdict(judged, "mean_kl")["message"]
    assert {"zh", "ja"} <= judged["coverage_by_language"].keys(), "text whose tokens end inside characters"
    assert judged["counts"].get("rollout_absent", 0) == 0
    assert verdict(judged, "coverage")["status"] == "pass"


def test_the_trainer_in_the_rollouts_precision_tells_whether_precision_accounts_for_it(tmp_path: Path) -> None:
    bfloat16 = "transformers:smollm2?dtype=bfloat16"
    done = run(
        "check", "--rollout", bfloat16, "--trainer", FLOAT32, "--also", bfloat16, "--run", "run", "--json",
        "--budget", "1536", "--no-why", cwd=tmp_path,
    )  # fmt: skip
    judged = judgement(done)
    assert done.returncode == 1
    assert "accounts for it" in verdict(judged, "precision_alone")["message"]
    loose = run("judge", "run", "--limits", "bf16", "--json", cwd=tmp_path)
    assert loose.returncode == 0, judgement(loose)["sentence"]


def test_a_fixed_suite_is_judged_on_its_tokens(tmp_path: Path) -> None:
    done = run(
        "check", "--rollout", FLOAT32, "--trainer", f"{FLOAT32}&batch_size=2", "--suite", "fixed-quick",
        "--budget", "2500", "--run", "run", "--json", cwd=tmp_path,
    )  # fmt: skip
    judged = judgement(done)
    assert done.returncode == 0, judged["sentence"]
    assert verdict(judged, "mean_kl")["kind"] == "on these tokens"


@pytest.mark.full
@pytest.mark.parametrize("stage", ["record", "score"])
def test_a_killed_greedy_run_goes_on_and_ends_like_an_unbroken_one(tmp_path: Path, stage: str) -> None:
    engine = f"{FLOAT32}&batch_size=2"
    record = ["record", "--engine", engine, "--temperature", "0", "--max-new-tokens", "8", "--budget", "128"]
    score = ["--engine", engine]
    assert run(*record, "--run", "whole", cwd=tmp_path).returncode == 0
    assert run("score", "whole", *score, cwd=tmp_path).returncode == 0
    if stage == "record":
        killed, folder = [*record, "--run", "broken"], tmp_path / "broken" / "rollouts"
    else:
        assert run(*record, "--run", "broken", cwd=tmp_path).returncode == 0
        killed, folder = ["score", "broken", *score], tmp_path / "broken" / "readings" / "trainer"
    before = _kill_after_parts(killed, folder, cwd=tmp_path, parts=2)
    assert run(*record, "--run", "broken", "--resume", cwd=tmp_path).returncode == 0
    assert run("score", "broken", *score, "--resume", cwd=tmp_path).returncode == 0
    assert {path.name: path.read_bytes() for path in folder.glob("part-*") if path.name in before} == before

    whole, broken = (judgement(run("judge", name, "--json", cwd=tmp_path)) for name in ("whole", "broken"))
    for judged in (whole, broken):
        judged.pop("run")
    assert whole == broken


def _kill_after_parts(arguments: list[str], folder: Path, *, cwd: Path, parts: int) -> dict[str, bytes]:
    process = subprocess.Popen([*ONEPOLICY, *arguments], cwd=cwd, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 300
    while len(list(folder.glob("part-*.parquet"))) < parts and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "it ended before it could be killed"
    return {path.name: path.read_bytes() for path in folder.glob("part-*.parquet")}


def test_a_run_recorded_in_one_environment_is_scored_in_another(tmp_path: Path) -> None:
    rollout, trainer = (ROOT / f".venv-{side}" / "bin" / "python" for side in ("rollout", "trainer"))
    for python, absent in ((rollout, "torch"), (trainer, "xllamacpp")):
        assert subprocess.run([python, "-c", f"import {absent}"], capture_output=True, check=False).returncode != 0
    recorded = run(
        "record", "--engine", "llamacpp:smollm2", "--budget", "400", "--max-new-tokens", "25", "--run", "run",
        cwd=tmp_path, python=rollout,
    )  # fmt: skip
    assert recorded.returncode == 0, recorded.stderr
    scored = run("score", "run", "--engine", FLOAT32, cwd=tmp_path, python=trainer)
    assert scored.returncode == 0, scored.stderr
    judged = judgement(run("judge", "run", "--json", cwd=tmp_path, python=rollout))
    assert judged["counts"]["rollouts"] == 16
    assert judged["status"] == "fail"


def test_the_demo_shows_a_pass_and_a_fail(tmp_path: Path) -> None:
    done = run("demo", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Pass: KL" in done.stdout
    assert "Fail: KL" in done.stdout
    assert "worst tokens" in done.stdout
