"""The ladder of real engines on the packaged model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.real

FLOAT32 = "transformers:smollm2?dtype=float32"


def climbed(*arguments: object, cwd: Path) -> tuple[int, dict]:
    command = [sys.executable, "-m", "onepolicy", "legs", *map(str, arguments), "--run", "run", "--json"]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=600, check=False)
    assert done.stdout.startswith("{"), done.stderr
    return done.returncode, json.loads(done.stdout)


def rung(ladder: dict, name: str) -> dict:
    return next(one for one in ladder["rungs"] if one["name"] == name)


@pytest.mark.full
def test_transformers_in_float32_holds_on_every_leg_and_knows_what_mistakes_would_do(tmp_path: Path) -> None:
    status, ladder = climbed(FLOAT32, "--without", "float16", "--budget", 700, cwd=tmp_path)
    assert status == 0, ladder["sentence"]
    assert rung(ladder, "repeat")["bitwise_share"] == 1.0
    assert rung(ladder, "warm")["from_cache"] > 0.5
    assert max(one["max_abs_d"] for one in ladder["rungs"] if one["kind"] == "must hold") < 1e-2
    assert rung(ladder, "no-positions")["status"] == "pass", "its positions are rotary"
    assert rung(ladder, "no-mask")["status"] == "fail"
    assert rung(ladder, "bfloat16")["mean_abs_d"] > 1e-3


@pytest.mark.full
def test_vllm_warms_its_cache_with_proof_and_decodes_what_it_prefills(tmp_path: Path, vllm_url: str) -> None:
    suite = ("--suite", "quick", "--budget", 768, "--max-new-tokens", 64)
    status, ladder = climbed(f"vllm:{vllm_url}", *suite, "--limits", "bf16", cwd=tmp_path)
    assert status == 0, ladder["sentence"]
    assert rung(ladder, "warm")["from_cache"] > 0.5
    assert rung(ladder, "sampled")["status"] == "pass"
    named = {leg["name"]: leg["why"] for leg in ladder["not_here"]}
    assert "--against" in named["chunked"]


@pytest.mark.full
def test_vllm_without_a_prefix_cache_has_no_proof_of_one(tmp_path: Path, start_vllm, smollm2_folder: Path) -> None:
    few = ("--suite", "quick", "--budget", 120, "--max-new-tokens", 40)
    with start_vllm(smollm2_folder, tmp_path / "log", "--no-enable-prefix-caching") as (url, _):
        status, ladder = climbed(f"vllm:{url}", *few, "--leg", "warm", "--limits", "bf16", cwd=tmp_path)
    assert status == 3
    assert "0% of the tokens come after something from the cache" in ladder["sentence"]


@pytest.mark.full
def test_llamacpp_has_proof_of_its_cache(tmp_path: Path) -> None:
    few = ("--suite", "quick", "--budget", 160, "--max-new-tokens", 40)
    legs = ("--leg", "warm", "--leg", "repeat", "--limits", "quantised")
    _, ladder = climbed("llamacpp:smollm2", *few, *legs, cwd=tmp_path)
    assert rung(ladder, "warm")["from_cache"] > 0.5
    proof = next(v for v in rung(ladder, "warm")["verdicts"] if v["check"] == "cache_proof")
    assert proof["status"] == "pass"
