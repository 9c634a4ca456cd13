"""`onepolicy probe` tells a real vLLM that processes its logprobs from one that does not."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.real


def probed(url: str) -> tuple[dict[str, str], dict[str, str]]:
    """Abilities and meanings, by name."""
    command = [sys.executable, "-m", "onepolicy", "probe", f"vllm:{url}", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    return tuple({fact["name"]: fact["answer"] for fact in found[part]} for part in ("abilities", "meanings"))


def test_a_plain_vllm_is_raw_and_its_limits_are_found(vllm_url):
    abilities, meanings = probed(vllm_url)
    assert meanings == {"sampled": "raw", "prompt": "raw"}
    assert abilities["top-k limit"] == "100"
    for ability in ("ids in", "ids out", "prompt logprobs", "logprobs of given ids", "cache proof", "cache flush"):
        assert abilities[ability] == "yes", ability
    assert abilities["heeds temperature"] == "yes"
    assert abilities["trace replay"] == abilities["distributions"] == "no"


def test_processed_logprobs_are_told_and_those_of_the_prompt_stay_raw(start_vllm, smollm2_folder, tmp_path):
    with start_vllm(smollm2_folder, tmp_path / "log", "--logprobs-mode=processed_logprobs") as (url, _):
        assert probed(url)[1] == {"sampled": "processed", "prompt": "raw"}
