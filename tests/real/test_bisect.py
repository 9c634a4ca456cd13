"""A planted pair of a real vLLM's switches is found among eight, by real starts."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from onepolicy.records.run import Run
from onepolicy.records.verdict import Status
from onepolicy.workflow.bisect_config import load_bisect_config
from onepolicy.workflow.bisect_trial import EngineTrial
from onepolicy.workflow.progress import Silent

pytestmark = [pytest.mark.real, pytest.mark.full]

VLLM = Path(__file__).parents[2] / ".venv-vllm" / "bin" / "python"
COMMON = (
    "--served-model-name=smollm2",
    "--max-model-len=1024",
    "--max-logprobs=100",
    "--host=127.0.0.1",
    "--enforce-eager",
)
OTHER_NORM = '{"rms_norm_eps": 0.001}'
"""a slightly other normalisation, as from a configuration file of another revision: 1e-5 is right"""
SWITCHES = {
    "dtype": (["--dtype=float32"], ["--dtype=bfloat16"]),
    "prefix caching": (["--enable-prefix-caching"], ["--no-enable-prefix-caching"]),
    "overrides": ([], ["--hf-overrides", OTHER_NORM]),
    "chunked prefill": (["--no-enable-chunked-prefill"], ["--enable-chunked-prefill"]),
    "sequences": (["--max-num-seqs=16"], ["--max-num-seqs=64"]),
    "batched tokens": (["--max-num-batched-tokens=4096"], ["--max-num-batched-tokens=2048"]),
    "generation config": ([], ["--override-generation-config", '{"temperature": 0.5, "repetition_penalty": 1.2}']),
    "seed": (["--seed=0"], ["--seed=7"]),
}
"""name -> (good, bad). dtype and overrides are the pair; all others change nothing that the check does not send"""


@pytest.fixture(scope="module")
def config(start_vllm, smollm2_folder, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("bisect")
    limits = {"mean_kl": 1.0, "max_abs_d": 5.0, "worst_rollout_kl": 1.0, "informative": ["outlier_rollouts"]}
    content = {
        "command": [str(VLLM), "-m", "vllm.entrypoints.openai.api_server", f"--model={smollm2_folder}", "--port={port}",
                    *COMMON, "{switches}"],
        "environment": {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_SERVER_DEV_MODE": "1"},
        "good": {name: good for name, (good, _) in SWITCHES.items() if good},
        "bad": {name: bad for name, (_, bad) in SWITCHES.items()},
        "check": {
            "rollout": "transformers:smollm2?dtype=float32",
            "trainer": "vllm:http://127.0.0.1:{port}",
            "suite": "fixed-quick",
            "budget": 1500,
            "limits": limits,
        },
    }  # fmt: skip
    path = folder / "bisect.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def mean_k3(config: Path, *switches: str) -> float:
    """What the check finds with these switches as in bad."""
    trial = EngineTrial(config=load_bisect_config(config), home=config.parent, progress=Silent())
    folder = config.parent / "-".join(("alone", *switches))
    attempt = trial(switches, folder)
    assert attempt.status is not Status.UNKNOWN, attempt.sentence
    verdicts = Run.open(folder / "run").judgement("default").verdicts
    return next(verdict.value for verdict in verdicts if verdict.check == "mean_kl")


@pytest.fixture(scope="module")
def limit(config) -> float:
    """Between what each of the two does alone and what both do, so that only together they fail."""
    alone = max(mean_k3(config, "dtype"), mean_k3(config, "overrides"))
    both = mean_k3(config, "dtype", "overrides")
    sys.stderr.write(f"mean k3: the worse alone {alone:.3g}, both {both:.3g}\n")
    assert both > 1.2 * alone
    return math.sqrt(alone * both)


def test_the_pair_is_found_among_eight_switches(config, limit):
    content = yaml.safe_load(config.read_text())
    content["check"]["limits"]["mean_kl"] = limit
    path = config.with_name("limited.yaml")
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    command = [sys.executable, "-m", "onepolicy", "bisect", str(path), "--run", "found", "--json"]
    done = subprocess.run(command, cwd=config.parent, capture_output=True, text=True, timeout=3500, check=False)
    assert done.returncode == 0, (done.stdout[-2000:], done.stderr[-2000:])
    found = json.loads(done.stdout)
    assert [[one["name"] for one in cause["switches"]] for cause in found["causes"]] == [["dtype", "overrides"]]
    assert not [test for test in found["tests"] if test["attempts"][-1]["status"] == "unknown"]
    starts = sum(len(test["attempts"]) for test in found["tests"])
    sys.stderr.write(f"{found['sentence']} {starts} starts\n")
