"""A real vLLM that serves a tiny reward model on a CPU: its scores, and what it makes of them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.real, pytest.mark.full]

MAKE = """
import sys
from pathlib import Path
from reward_models import llama
llama(Path(sys.argv[1]), hidden_size=128, num_attention_heads=2, num_key_value_heads=2, initializer_range=0.1)
"""
"""in a process of its own, as torch is slow to import and only this fixture needs it; heads of 64 are vLLM's least"""
HELPERS = Path(__file__).parents[1] / "integrations"


@pytest.fixture(scope="module")
def served(start_vllm, tmp_path_factory):
    """The folder of the model, and the URL at which it is served in float32."""
    folder = tmp_path_factory.mktemp("reward") / "model"
    command = [sys.executable, "-c", MAKE, str(folder)]
    subprocess.run(command, cwd=HELPERS, check=True, timeout=120, capture_output=True)
    options = ("--runner=pooling", "--dtype=float32", "--max-num-batched-tokens=2048")
    with start_vllm(folder, folder.parent / "log", *options) as (url, _):
        yield folder, url


def judged(*arguments: object) -> tuple[int, dict]:
    command = [sys.executable, "-m", "onepolicy", "reward", *map(str, arguments), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout.startswith("{"), done.stderr
    return done.returncode, json.loads(done.stdout)


def verdict(found: dict, check: str) -> dict:
    return next(one for one in found["verdicts"] if one["check"] == check)


def test_raw_scores_of_vllm_are_those_of_transformers(served):
    folder, url = served
    status, found = judged(folder, "--served", f"vllm:{url}?activation=false")
    assert status == 0, found["sentence"]
    assert verdict(found, "served")["value"] < 0.01


def test_its_sigmoid_is_named(served):
    folder, url = served
    status, found = judged(folder, "--served", f"vllm:{url}")
    assert status == 1
    assert "they are a sigmoid of the trainer's" in verdict(found, "served")["message"]


def test_it_is_checked_by_itself_and_what_cannot_be_seen_is_said(served):
    _, url = served
    status, found = judged(f"vllm:{url}?activation=false&dtype=float32")
    assert status == 0, found["sentence"]
    assert verdict(found, "padding")["message"].startswith("not checked")
    assert verdict(found, "truncation_side")["status"] == "pass"
    assert verdict(found, "neighbours")["status"] == "pass"


def test_a_trainer_that_reads_the_token_before_the_end_token_gets_other_scores_than_vllm(served, tmp_path):
    folder, url = served
    copy = tmp_path / "model"
    shutil.copytree(folder, copy)
    code = "import sys; from pathlib import Path; from reward_models import *; f = Path(sys.argv[1]); "
    code += "reconfigured(retokenized(f, pad='<|end|>'), pad_token_id=END)"
    subprocess.run([sys.executable, "-c", code, str(copy)], cwd=HELPERS, check=True, timeout=120, capture_output=True)
    status, found = judged(copy, "--served", f"vllm:{url}?activation=false")
    assert status == 1
    assert verdict(found, "reads_end")["status"] == verdict(found, "served")["status"] == "fail"
    assert "which token each side reads" in verdict(found, "served")["message"]
